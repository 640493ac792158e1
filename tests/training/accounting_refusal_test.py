"""What no accountant supports is refused before training."""

import keras
import pytest

import tf_dpadaptive as dpa


def _compile(plan: dpa.PrivacyPlan) -> None:
    model = dpa.privatize(
        keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    )
    model.compile(dpa.optimizers.DPSGD(0.1, 1.0, plan), loss="mse")


def test_a_fixed_order_under_add_or_remove_is_refused_at_compile() -> None:
    plan = dpa.PrivacyPlan(
        noise_multiplier=1.0,
        expected_batch_size=4,
        num_examples=16,
        num_steps=8,
        delta=1e-3,
        sampling="shuffled",
        adjacency="add_or_remove",
    )
    with pytest.raises(ValueError, match="ε can't be computed"):
        _compile(plan)


@pytest.mark.parametrize("changes", [{}, {"num_examples": None}])
def test_what_can_be_accounted_or_asks_for_no_epsilon_compiles(
    changes: dict[str, None],
) -> None:
    given = {
        "noise_multiplier": 1.0,
        "expected_batch_size": 4,
        "num_examples": 16,
        "num_steps": 8,
        "delta": 1e-3,
    }
    _compile(dpa.PrivacyPlan(**{**given, **changes}))
