"""The fixed shape of Poisson batches, and what overflow costs."""

import dataclasses
import itertools

import numpy as np
import pytest
from scipy import stats

from tests.banded_noise import Banded
from tf_dpadaptive.accounting.gaussian import gaussian_delta
from tf_dpadaptive.accounting.overflow import max_batch_size, overflow_delta
from tf_dpadaptive.plan import PrivacyPlan


@pytest.mark.parametrize(
    ("batch", "examples"),
    [(1, 1000), (64, 1437), (512, 60_000), (1000, 10**8), (50, 60)],
)
@pytest.mark.parametrize("delta", [None, 1e-5])
def test_overflow_is_negligible_and_the_shape_is_not_wasteful(
    batch, examples, delta
):
    plan = PrivacyPlan(1.0, batch, examples, 5000, delta=delta)
    rows = max_batch_size(plan)
    assert rows == examples or rows % 8 == 0
    assert batch <= rows <= examples
    if rows < examples:
        tail = stats.binom.sf(rows - 1, examples, batch / examples)
        assert overflow_delta(plan, 5000) == pytest.approx(
            5000 * tail, rel=1e-5
        )
        assert overflow_delta(plan, 5000) <= (1e-4 * delta if delta else 5e-12)
        # Eight rows less would have been too few.
        fewer = stats.binom.sf(rows - 9, examples, batch / examples)
        assert fewer > (1e-4 * delta / 5000 if delta else 1e-15)


def test_all_examples_fit_means_no_overflow():
    assert overflow_delta(PrivacyPlan(1.0, 50, 60), 10**6) == 0


@pytest.mark.parametrize("sampling", ["shuffled", "in_order"])
def test_fixed_orders_never_overflow(sampling):
    plan = PrivacyPlan(1.0, 10, 100, sampling=sampling)
    assert max_batch_size(plan) == 10
    assert overflow_delta(plan, 100) == 0


def test_cyclic_samples_from_a_part():
    plan = PrivacyPlan(
        1.0, 50, 10_000, 100, sampling="cyclic_poisson", noise=Banded(10)
    )
    rows = max_batch_size(plan)
    tail = stats.binom.sf(rows - 1, 1000, 0.05)
    assert overflow_delta(plan, 100) == pytest.approx(100 * tail, rel=1e-5)


def test_cost_is_part_of_epsilon():
    # A tight shape, asked at a δ of which overflow takes two thirds.
    plan = PrivacyPlan(1.0, 64, 10_000, 1000, delta=1e-3)
    roomy = dataclasses.replace(plan, delta=None)
    spill = overflow_delta(plan, 1000)
    assert overflow_delta(roomy, 1000) < 1e-4 * spill
    assert plan.epsilon(delta=1.5 * spill) == pytest.approx(
        roomy.epsilon(delta=0.5 * spill), rel=1e-4
    )
    with pytest.raises(ValueError, match="max_batch_size"):
        plan.epsilon(delta=spill)


def truncated(values, q, most):
    """Distribution of the sum when at most `most` of those sampled are kept."""
    masses = {}
    for sample in itertools.product([0, 1], repeat=len(values)):
        chance = np.prod([q if s else 1 - q for s in sample])
        present = [v for v, s in zip(values, sample, strict=True) if s]
        kept = list(itertools.combinations(present, min(most, len(present))))
        for subset in kept:
            total = sum(subset)
            masses[total] = masses.get(total, 0) + chance / len(kept)
    return masses


@pytest.mark.parametrize("others", [(0, 0, 0), (1, 1, 1), (-1, 1, -1)])
@pytest.mark.parametrize("neighbour", ["zero_out", "remove"])
@pytest.mark.parametrize("epsilon", [0.2, 1.0])
def test_bound_holds_against_enumeration(others, neighbour, epsilon):
    """One step, N = 4, two rows: the true δ of the truncated mechanism."""
    q, most, sigma = 0.1, 2, 1.0
    x = np.linspace(-15, 15, 60_001)

    def density(values):
        return sum(
            mass * stats.norm.pdf(x, total, sigma)
            for total, mass in truncated(values, q, most).items()
        )

    one = density((1, *others))
    two = density((0, *others) if neighbour == "zero_out" else others)
    width = x[1] - x[0]
    true = max(
        np.sum(np.maximum(a - np.exp(epsilon) * b, 0)) * width
        for a, b in ((one, two), (two, one))
    )
    spill = stats.binom.sf(most - 1, 4, q)
    # The sampled Gaussian's own δ, in both directions (closed form).
    remove = q * gaussian_delta(sigma, np.log1p(np.expm1(epsilon) / q))
    share = 1 - np.exp(epsilon) * (1 - q)
    add = 0.0
    if share > 0:
        at = np.log(np.exp(epsilon) * q / share)
        add = share * gaussian_delta(sigma, at)
    assert true <= max(remove, add) + spill
