"""What is charged: the releases of a step together are one Gaussian of σ."""

import math

import dp_accounting
import keras
import numpy as np
import pytest
from dp_accounting import rdp
from scipy import stats

from tests.optimizers.bench import Bench
from tests.reference import independent_moments, joint_moments
from tf_dpadaptive import PrivacyPlan, privatize
from tf_dpadaptive import optimizers as dpa

CLIP, B, SIGMA, N = 0.7, 5, 1.1, 50
DELTA = 1e-3
IME = [dpa.DPAdamIndependentMoments, dpa.DPAdagradIndependentMoments]
JME = [dpa.DPAdamJointMoments, dpa.DPAdagradJointMoments]
CASES = [
    *[(kind, {"sensitivity": s}) for kind in IME for s in ("paper", "tight")],
    *[(kind, {"scale": s}) for kind in JME for s in (None, 0.03, 9.0)],
]


def plan_of(steps: int) -> PrivacyPlan:
    return PrivacyPlan(
        SIGMA,
        expected_batch_size=B,
        num_examples=N,
        num_steps=steps,
        delta=DELTA,
    )


def multipliers(kind, own, plan) -> list[float]:
    """Noise of each release over how far one example moves that release."""
    optimizer = Bench(kind(0.1, CLIP, plan, **own), [np.zeros(2)]).optimizer
    released = optimizer.releases({0: np.zeros(2, np.float32)})
    if kind in IME:
        moved = [
            CLIP / B,
            independent_moments.square_sensitivity(
                CLIP, B, 1, own["sensitivity"]
            ),
        ]
    else:
        square = joint_moments.largest_square_distance(CLIP / B, CLIP)
        moved = [CLIP / B, math.sqrt(square)]
    return [
        SIGMA * float(r.sensitivity) / m
        for r, m in zip(released, moved, strict=True)
    ]


@pytest.mark.parametrize(("kind", "own"), CASES)
def test_the_two_releases_compose_to_the_event_of_the_plan(kind, own):
    steps = 40
    plan = plan_of(steps)
    both = dp_accounting.ComposedDpEvent(
        [dp_accounting.GaussianDpEvent(m) for m in multipliers(kind, own, plan)]
    )
    sampled = dp_accounting.PoissonSampledDpEvent(B / N, both)
    event = dp_accounting.SelfComposedDpEvent(sampled, steps)
    assert epsilon(event) == pytest.approx(epsilon(plan.event()), rel=1e-6)


def test_two_sampled_releases_would_be_charged_too_little():
    plan = plan_of(40)
    each = [
        dp_accounting.PoissonSampledDpEvent(
            B / N, dp_accounting.GaussianDpEvent(m)
        )
        for m in multipliers(*CASES[0], plan)
    ]
    event = dp_accounting.SelfComposedDpEvent(
        dp_accounting.ComposedDpEvent(each), 40
    )
    assert epsilon(event) < 0.9 * epsilon(plan.event())


def epsilon(event: dp_accounting.DpEvent) -> float:
    accountant = rdp.RdpAccountant()
    accountant.compose(event)
    return accountant.get_epsilon(DELTA)


@pytest.mark.parametrize(("kind", "own"), [CASES[0], CASES[5]])
def test_the_two_releases_have_the_plans_delta_by_integration(kind, own):
    # No accountant: the hockey stick between the two releases without an
    # example, and the mixture with it at probability q, on a grid.
    plan, q = plan_of(1), B / N
    x = np.linspace(-10, 14, 3001)
    step = x[1] - x[0]
    without, with_it = 1.0, 1.0
    for m in multipliers(kind, own, plan):
        # In units of the noise the example moves this release by 1/m.
        absent, present = stats.norm.pdf(x), stats.norm.pdf(x, 1 / m)
        without = np.multiply.outer(without, absent)
        with_it = np.multiply.outer(with_it, present)
    mixed = (1 - q) * without + q * with_it
    stick = math.exp(plan.epsilon(1))
    removed = np.sum(np.maximum(mixed - stick * without, 0)) * step**2
    added = np.sum(np.maximum(without - stick * mixed, 0)) * step**2
    assert max(removed, added) <= DELTA
    # The accountant's ε is an upper bound that is near.
    assert max(removed, added) >= 0.97 * DELTA


@pytest.mark.parametrize("scaled", [False, True])
def test_the_baseline_reports_infinity_wherever_it_is_asked(scaled):
    model = privatize(
        keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    )
    plan = plan_of(9)
    optimizer = dpa.NonPrivatePreconditionerAdam(
        0.1, CLIP, plan, scale_then_privatize=scaled
    )
    model.compile(optimizer, loss="mse")
    rng = np.random.default_rng(0)
    x = rng.standard_normal((N, 3)).astype("float32")
    model.fit(plan.batches(x, x[:, :1]), steps_per_epoch=1, verbose=0)
    assert math.isinf(model.epsilon())
    assert math.isinf(model.epsilon(delta=0.5))
    assert math.isinf(optimizer.epsilon())
    assert "NOT PRIVATE" in model.privacy_statement()
    assert "raw gradients" in model.privacy_statement()
    # Private updates afterwards do not wash it clean.
    private = dpa.DPSGD(0.1, CLIP, plan)
    model.compile(private, loss="mse")
    model.fit(plan.batches(x, x[:, :1]), steps_per_epoch=1, verbose=0)
    assert math.isinf(private.epsilon())
    assert math.isinf(model.epsilon())
