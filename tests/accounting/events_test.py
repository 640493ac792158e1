"""Which events a run is charged."""

import math

import dp_accounting
import numpy as np
import pytest

from tests.banded_noise import Banded, Full
from tf_dpadaptive.accounting.events import Release, releases, to_event
from tf_dpadaptive.plan import PrivacyPlan


def plan(sigma=2.0, batch=10, examples=100, steps=35, **changes):
    return PrivacyPlan(sigma, batch, examples, steps, **changes)


def test_poisson_is_a_sampled_gaussian_each_step():
    assert releases(plan(), 35) == (Release(0.1, 2.0, 35),)
    assert plan().event(35) == dp_accounting.SelfComposedDpEvent(
        dp_accounting.PoissonSampledDpEvent(
            0.1, dp_accounting.GaussianDpEvent(2.0)
        ),
        35,
    )


def test_no_steps_are_no_event():
    assert plan().event(0) == dp_accounting.NoOpDpEvent()


def test_no_noise_is_not_private():
    assert plan(sigma=0.0).event(3) == dp_accounting.NonPrivateDpEvent()


@pytest.mark.parametrize("sampling", ["shuffled", "in_order"])
@pytest.mark.parametrize(
    ("steps", "passes"), [(1, 1), (10, 1), (11, 2), (20, 2), (35, 4)]
)
def test_fixed_order_is_one_gaussian_of_all_passes(sampling, steps, passes):
    found = releases(plan(sampling=sampling), steps)
    assert found == (Release(1.0, 2.0 / math.sqrt(passes), 1),)


def test_fixed_order_counts_the_ragged_batch_as_a_step():
    # 95 examples are 10 updates too, and 91 are.
    found = releases(plan(examples=91, sampling="shuffled"), 20)
    assert found == (Release(1.0, 2.0 / math.sqrt(2), 1),)


@pytest.mark.parametrize(
    ("steps", "count"), [(1, 1), (5, 1), (6, 2), (35, 7), (31, 7)]
)
def test_cyclic_composes_the_turns_of_one_part(steps, count):
    cyclic = plan(sampling="cyclic_poisson", noise=Banded(5))
    assert releases(cyclic, steps) == (Release(0.5, 2.0, count),)


def test_cyclic_with_independent_noise_is_poisson():
    cyclic = plan(sampling="cyclic_poisson")
    assert releases(cyclic, 35) == releases(plan(), 35)


def test_cyclic_refuses_parts_smaller_than_a_batch():
    with pytest.raises(ValueError, match="bands <= num_examples"):
        releases(plan(sampling="cyclic_poisson", noise=Banded(11)), 1)


def test_cyclic_refuses_noise_without_bands():
    with pytest.raises(ValueError, match="bands"):
        releases(plan(sampling="cyclic_poisson", noise=Full()), 1)


def test_bands_beyond_the_separation_are_refused_with_the_reason():
    with pytest.raises(ValueError, match="11 bands, but separation 10"):
        releases(plan(sampling="shuffled", noise=Banded(11)), 1)


def test_poisson_with_bands_is_refused_and_with_full_noise_unamplified():
    with pytest.raises(ValueError, match="separation 1"):
        releases(plan(noise=Banded(2)), 3)
    (found,) = releases(plan(noise=Full(), steps=3), 3)
    # Ones below the diagonal, an example in all 3 steps: (1, 2, 3) / sqrt 3.
    assert found == Release(1.0, pytest.approx(2.0 / np.sqrt(14 / 3)), 1)


def test_part_of_a_correlated_run_is_charged_on_its_own_matrix():
    # After 10 of 35 steps one participation has been possible; the matrix is
    # that of 35 steps, in which this costs at most the sensitivity 1.
    shuffled = plan(sampling="shuffled", noise=Full())
    assert releases(shuffled, 10) == (Release(1.0, pytest.approx(2.0), 1),)
    by_steps = [releases(shuffled, n)[0].noise_multiplier for n in (10, 20, 35)]
    assert by_steps == sorted(by_steps, reverse=True)


def test_more_steps_than_correlated_noise_has_are_refused():
    shuffled = plan(sampling="shuffled", noise=Banded(5))
    with pytest.raises(ValueError, match=r"num_steps=35.*steps=36"):
        releases(shuffled, 36)
    assert releases(plan(), 36) == (Release(0.1, 2.0, 36),)


@pytest.mark.parametrize("sampling", ["shuffled", "in_order"])
def test_fixed_order_under_add_or_remove_is_refused(sampling):
    moved = plan(sampling=sampling, adjacency="add_or_remove")
    with pytest.raises(ValueError, match="moves others"):
        releases(moved, 1)


def test_events_compose():
    two = to_event([Release(1.0, 2.0, 1), Release(0.5, 3.0, 2)])
    gaussian = dp_accounting.GaussianDpEvent
    sampled = dp_accounting.PoissonSampledDpEvent(0.5, gaussian(3.0))
    assert two == dp_accounting.ComposedDpEvent(
        [gaussian(2.0), dp_accounting.SelfComposedDpEvent(sampled, 2)]
    )
