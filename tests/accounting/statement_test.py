"""The guarantee in words."""

import dataclasses
import importlib.metadata

import pytest

from tests.banded_noise import Banded, Full
from tf_dpadaptive.plan import PrivacyPlan

PLAN = PrivacyPlan(1.1, 250, 60_000, 14_400, delta=1e-5)


def test_holds_all_the_numbers():
    text = PLAN.statement()
    for part in (
        "ε = 2.35 ",
        "δ = 1e-05",
        "'zero_out'",
        "14400 updates",
        "60000 examples",
        "batch size 250",
        "multiplier 1.1 ",
        "probability 0.004167",
        "PLD of dp-accounting " + importlib.metadata.version("dp-accounting"),
        "Not covered",
        "hyper-parameters",
    ):
        assert part in text
    assert "\n" not in text


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"sampling": "shuffled"}, "one random order"),
        ({"sampling": "in_order"}, "in their order"),
        (
            {"sampling": "cyclic_poisson", "noise": Banded(8)},
            "8 fixed parts, and each update sampled the next part, each "
            "example of it independently with probability 0.03333",
        ),
        ({"noise": Full(), "num_steps": 10}, "no amplification is claimed"),
        ({"adjacency": "add_or_remove"}, "one example more"),
        (
            {"adjacency": "replace", "sampling": "shuffled"},
            "replaced by any other",
        ),
    ],
)
def test_says_what_was_sampled_and_who_is_a_neighbour(changes, part):
    assert part in dataclasses.replace(PLAN, **changes).statement(10)


def test_without_noise_there_is_no_guarantee():
    text = dataclasses.replace(PLAN, noise_multiplier=0).statement()
    assert "NO differential privacy" in text
    assert "ε is infinite" in text


def test_counts_what_ran():
    assert "after 240 updates" in PLAN.statement(240)
    assert PLAN.statement(240, delta=1e-6) != PLAN.statement(240)
