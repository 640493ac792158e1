"""ε of several runs on the same data."""

import dataclasses
import math

import pytest

from tests.banded_noise import Banded
from tf_dpadaptive.accounting.compose import (
    account_for_runs,
    epsilon_of_runs,
)
from tf_dpadaptive.plan import PrivacyPlan

PLAN = PrivacyPlan(1.1, 250, 60_000, 1000, delta=1e-5)
OTHER = dataclasses.replace(PLAN, noise_multiplier=2.0)


def test_one_run_is_the_plans_epsilon():
    assert epsilon_of_runs([(PLAN, 700)], 1e-5) == PLAN.epsilon(700)


def test_nothing_costs_nothing():
    assert epsilon_of_runs([], 1e-5) == 0
    assert epsilon_of_runs([(PLAN, 0), (OTHER, 0)], 1e-5) == 0


def test_equal_plans_add_up_their_steps():
    two = epsilon_of_runs([(PLAN, 300), (PLAN, 400)], 1e-5)
    assert two == pytest.approx(PLAN.epsilon(700), rel=1e-9)


def test_order_does_not_matter():
    assert epsilon_of_runs([(PLAN, 300), (OTHER, 400)], 1e-5) == (
        epsilon_of_runs([(OTHER, 400), (PLAN, 300)], 1e-5)
    )


def test_two_runs_cost_more_than_one_and_less_than_the_sum():
    one, two = PLAN.epsilon(1000), OTHER.epsilon(1000)
    both = epsilon_of_runs([(PLAN, 1000), (OTHER, 1000)], 1e-5)
    assert max(one, two) < both
    assert both < PLAN.epsilon(1000, 5e-6) + OTHER.epsilon(1000, 5e-6)


def test_runs_of_fixed_order_compose_as_gaussians():
    shuffled = dataclasses.replace(PLAN, sampling="shuffled")
    two = epsilon_of_runs([(shuffled, 240), (shuffled, 240)], 1e-5)
    # Two orders: an example may be last in one run and first in the next.
    assert two == pytest.approx(shuffled.epsilon(480), rel=1e-9)
    apart = epsilon_of_runs([(shuffled, 1), (shuffled, 1)], 1e-5)
    assert apart > shuffled.epsilon(2)


def test_mixed_samplings_compose():
    cyclic = dataclasses.replace(
        PLAN, sampling="cyclic_poisson", noise=Banded(8)
    )
    shuffled = dataclasses.replace(PLAN, sampling="shuffled")
    found = epsilon_of_runs([(cyclic, 10), (shuffled, 10)], 1e-5)
    assert found > max(cyclic.epsilon(10), shuffled.epsilon(10))


def test_one_run_without_noise_is_infinite():
    silent = dataclasses.replace(PLAN, noise_multiplier=0)
    assert epsilon_of_runs([(PLAN, 5), (silent, 1)], 1e-5) == math.inf
    assert epsilon_of_runs([(PLAN, 5), (silent, 0)], 1e-5) < math.inf


def test_adjacencies_may_not_be_mixed():
    added = dataclasses.replace(PLAN, adjacency="add_or_remove")
    with pytest.raises(ValueError, match=r"add_or_remove.*zero_out"):
        epsilon_of_runs([(PLAN, 5), (added, 5)], 1e-5)


@pytest.mark.parametrize("delta", [0, 1, -1])
def test_delta_out_of_range_is_refused(delta):
    with pytest.raises(ValueError, match="delta"):
        epsilon_of_runs([(PLAN, 5)], delta)


def test_says_who_found_it():
    assert "dp-accounting" in account_for_runs([(PLAN, 5)], 1e-5).accountant
