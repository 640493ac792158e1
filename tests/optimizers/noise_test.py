"""The noise that reaches the rules has the spread that the formulas say.

Each test takes real updates with the optimizer's own keys and compares what
`rule` sees, in mean space, with N(mean, stddev²) by a Kolmogorov-Smirnov test.
The standard deviations are computed in NumPy from the formulas.

A right spread is rejected with probability 1e-7 a comparison (`ALPHA`; the
seeds are fixed, so no test fails now and then). With 12,000 values a spread
that is wrong by a factor 3/2 gives p below 1e-90: it is never accepted.
"""

import math
import warnings
from typing import Any

import numpy as np
import pytest
from scipy import stats

from tests.optimizers.bench import Arrays, Bench, flat
from tests.reference import independent_moments, joint_moments
from tf_dpadaptive import PrivacyPlan
from tf_dpadaptive import optimizers as dpa

SHAPES = [(80, 100), (4000,)]
SIGMA, B, CLIP = 1.3, 8, 1.5
ALPHA, REJECTED = 1e-7, 1e-60
ADJACENCIES = ["zero_out", "add_or_remove", "replace"]


def made(kind: Any, **own: Any) -> Bench:
    """An optimizer on SHAPES."""
    adjacency = own.pop("adjacency", "zero_out")
    plan = PrivacyPlan(
        SIGMA,
        expected_batch_size=own.pop("batch_size", B),
        num_examples=100,
        num_steps=40,
        adjacency=adjacency,
        sampling=own.pop("sampling", "poisson"),
    )
    given = {"l2_norm_clip": CLIP, "seed": 4, **own}
    with warnings.catch_warnings():
        # Some settings here are hopeless for training, which does not matter.
        warnings.simplefilter("ignore", UserWarning)
        optimizer = kind(0.1, plan=plan, **given)
        return Bench(optimizer, [np.zeros(s) for s in SHAPES], replayed=False)


def sums() -> Arrays:
    """Clipped sums, each of norm 2: below any projection."""
    rng = np.random.default_rng(2)
    drawn = [rng.standard_normal(s) for s in SHAPES]
    length = np.linalg.norm(flat(drawn))
    return [(2.0 / length * d).astype(np.float32) for d in drawn]


def spread(seed: int, low: float, high: float) -> list[np.ndarray]:
    """State whose coordinates lie between 10^low and 10^high."""
    rng = np.random.default_rng(seed)
    return [10.0 ** rng.uniform(low, high, s) for s in SHAPES]


def set_slot(bench: Bench, name: str, values: Arrays) -> None:
    for kept, value in zip(bench.optimizer._slots, values, strict=True):
        kept[bench.optimizer.slot_names.index(name)].assign(value)


def check(values: np.ndarray, mean: Any, stddev: Any) -> None:
    """Accepts values ~ N(mean, stddev²) by coordinate; not 2/3 or 3/2 of it."""

    def p_value(times: float) -> float:
        unit = (values - mean) / (times * stddev)
        return float(stats.kstest(unit, "norm").pvalue)

    assert p_value(1.0) > ALPHA
    assert p_value(2 / 3) < REJECTED
    assert p_value(3 / 2) < REJECTED


FACTOR = {"zero_out": 1, "add_or_remove": 1, "replace": 2}


class MeanTest:
    """ḡ + (S/B)σ z, where clipping happens in plain coordinates."""

    @pytest.mark.parametrize("adjacency", ADJACENCIES)
    @pytest.mark.parametrize(
        ("kind", "own"),
        [
            (dpa.DPSGD, {}),
            (dpa.DPAdam, {}),
            (dpa.DPAdagradBiasCorrected, {}),
            (dpa.DPMicroAdam, {}),
        ],
    )
    def test_of_one_release(self, kind, own, adjacency):
        bench = made(kind, adjacency=adjacency, **own)
        (g,) = bench.estimates(sums())
        tau = FACTOR[adjacency] * CLIP * SIGMA / B
        check(g, flat(sums()) / B, tau)

    def test_of_the_baseline_leaves_its_second_moment_raw(self):
        bench = made(dpa.NonPrivatePreconditionerAdam)
        g, raw = bench.estimates(sums())
        check(g, flat(sums()) / B, CLIP * SIGMA / B)
        np.testing.assert_allclose(raw, flat(sums()) / B, rtol=1e-6)


class TwoStreamsTest:
    """IME's two releases, JME's one record."""

    @pytest.mark.parametrize("adjacency", ADJACENCIES)
    @pytest.mark.parametrize("sensitivity", ["paper", "tight"])
    def test_of_independent_moments(self, sensitivity, adjacency):
        bench = made(
            dpa.DPAdamIndependentMoments,
            adjacency=adjacency,
            sensitivity=sensitivity,
        )
        g1, g2 = bench.estimates(sums())
        mean, factor = flat(sums()) / B, FACTOR[adjacency]
        # Sampled replace-one is noised with twice the zero-out sensitivity.
        s2 = factor * independent_moments.square_sensitivity(
            CLIP, B, 1, sensitivity
        )
        first = math.sqrt(2) * factor * CLIP * SIGMA / B
        check(g1, mean, first)
        check(g2, mean**2, math.sqrt(2) * s2 * SIGMA)

    def test_of_independent_moments_where_replacing_is_not_sampled(self):
        bench = made(
            dpa.DPAdagradIndependentMoments,
            adjacency="replace",
            sampling="shuffled",
            sensitivity="tight",
        )
        _, g2 = bench.estimates(sums())
        s2 = independent_moments.square_sensitivity(CLIP, B, 2, "tight")
        mean = flat(sums()) / B
        check(g2, mean**2, math.sqrt(2) * s2 * SIGMA)

    @pytest.mark.parametrize("adjacency", ADJACENCIES)
    @pytest.mark.parametrize("scale", [None, 0.05, 7.0])
    def test_of_joint_moments(self, scale, adjacency):
        bench = made(dpa.DPAdamJointMoments, adjacency=adjacency, scale=scale)
        lam = 1 / (2 * CLIP**2) if scale is None else scale
        factor = FACTOR[adjacency]
        j = max(
            factor * joint_moments.joint_sensitivity(CLIP / B, CLIP, lam),
            joint_moments.joint_sensitivity(factor * CLIP / B, CLIP, lam),
        )
        g1, g2 = bench.estimates(sums())
        mean = flat(sums()) / B
        # The record (p, √λ p²) is noised by one Gaussian of stddev Jσ.
        record = np.concatenate([g1 - mean, np.sqrt(lam) * (g2 - mean**2)])
        check(record, 0.0, j * SIGMA)
        check(g1, mean, j * SIGMA)
        check(g2, mean**2, j * SIGMA / np.sqrt(lam))

    @pytest.mark.parametrize(
        "kind", [dpa.DPAdamIndependentMoments, dpa.DPAdagradJointMoments]
    )
    def test_streams_and_steps_and_variables_are_independent(self, kind):
        bench = made(kind)
        unit = []
        for _ in range(3):
            for released in bench.estimates([0 * s for s in sums()]):
                unit += np.split(released / np.std(released), [4000, 8000])
        # 18 rows of 4000 values: two streams, three steps, three parts. The
        # correlation of two rows has deviation 1/√4000; any of the 153 pairs
        # passes 6 deviations with probability 3e-7.
        seen = np.corrcoef(np.array(unit))
        largest = np.max(np.abs(seen - np.eye(len(unit))))
        assert largest < 6 / math.sqrt(4000)
        # Uncorrelated is not independent: z and ±z or z and |z| would pass
        # the one test and not the other.
        squares = np.corrcoef(np.array(unit) ** 2)
        largest = np.max(np.abs(squares - np.eye(len(unit))))
        assert largest < 7 / math.sqrt(4000)  # heavier tails: 3e-7 or less


class ScaledTest:
    """Noise in a geometry: each coordinate has a spread of its own."""

    @pytest.mark.parametrize("adjacency", ["zero_out", "replace"])
    def test_of_adam_scale_then_privatize(self, adjacency):
        bench = made(
            dpa.DPAdamScaleThenPrivatize,
            adjacency=adjacency,
            scale_epsilon=1e-2,
        )
        velocity, steps = spread(5, -6, 0), 5
        set_slot(bench, "velocity", velocity)
        bench.optimizer.iterations.assign(steps)
        (g,) = bench.estimates(sums())
        root = np.sqrt(flat(velocity) / (1 - 0.999**steps)) + 1e-2
        tau = FACTOR[adjacency] * CLIP * SIGMA / B
        check(g, flat(sums()) / B * root, tau * root)

    def test_of_scale_then_privatize_at_the_first_step(self):
        bench = made(dpa.DPAdamScaleThenPrivatize, scale_epsilon=1e-3)
        (g,) = bench.estimates(sums())
        tau = CLIP * SIGMA / B * 1e-3
        check(g, flat(sums()) / B * 1e-3, tau)

    def test_of_adagrad_scale_then_privatize(self):
        bench = made(dpa.DPAdagradScaleThenPrivatize, scale_epsilon=1e-2)
        accumulator = spread(6, -6, 0)
        set_slot(bench, "accumulator", accumulator)
        (g,) = bench.estimates(sums())
        root = np.sqrt(flat(accumulator)) + 1e-2
        tau = CLIP * SIGMA / B
        check(g, flat(sums()) / B * root, tau * root)

    @pytest.mark.parametrize("adjacency", ["zero_out", "replace"])
    def test_of_adaclip(self, adjacency):
        bench = made(dpa.AdaCliP, adjacency=adjacency, h2=10.0)
        centre, variance = spread(7, -3, 0), spread(8, -8, 0)
        set_slot(bench, "mean", centre)
        set_slot(bench, "variance", variance)
        (g,) = bench.estimates(sums())
        s = np.sqrt(flat(variance))
        b = np.sqrt(s) * np.sqrt(np.sum(s))
        mean = b * flat(sums()) / B + flat(centre)
        stddev = b * FACTOR[adjacency] * SIGMA / B
        # The clip norm plays no part: it is 1 in units of b.
        check(g, mean, stddev)

    @pytest.mark.parametrize("scaled", [False, True])
    def test_of_side_information(self, scaled):
        bench = made(
            dpa.DPAdamSideInformation,
            scale_then_privatize=scaled,
            scale_epsilon=1e-2,
        )
        public = spread(9, -3, 0)
        bench.optimizer._public = dict(enumerate(np.float32(h) for h in public))
        (g,) = bench.estimates(sums())
        root = flat(public) + 1e-2 if scaled else 1.0
        tau = CLIP * SIGMA / B
        check(g, flat(sums()) / B * root, tau * root)

    @pytest.mark.parametrize(
        "kind", [dpa.DPRMSpropDelayed, dpa.DPAdagradDelayed]
    )
    @pytest.mark.parametrize(
        ("step", "clip", "rate"), [(0, 1.5, 0.1), (2, 1.5, 0.1), (3, 4.0, 0.02)]
    )
    def test_of_the_delayed_preconditioner(self, kind, step, clip, rate):
        bench = made(
            kind,
            plain_steps=3,
            adaptive_steps=2,
            adaptive_l2_norm_clip=4.0,
            adaptive_learning_rate=0.02,
        )
        set_slot(bench, "preconditioner", spread(10, -6, 0))
        bench.optimizer.iterations.assign(step)
        bench.estimates(sums())
        # θ moves by the released vector itself, in both phases.
        moved = -flat(bench.parameters()) / rate
        check(moved, flat(sums()) / B, clip * SIGMA / B)


@pytest.mark.parametrize(
    "kind", [dpa.DPAdamIndependentMoments, dpa.DPAdagradIndependentMoments]
)
@pytest.mark.parametrize("sampling", ["poisson", "cyclic_poisson"])
def test_tight_is_refused_where_sampled_batches_exceed_b(kind, sampling):
    for adjacency in ADJACENCIES:
        own = {"adjacency": adjacency, "batch_size": 1}
        with pytest.raises(ValueError, match="B >= 1.5"):
            made(kind, sampling=sampling, sensitivity="tight", **own)
        made(kind, sampling=sampling, sensitivity="paper", **own)
    made(kind, sampling=sampling, batch_size=2, sensitivity="tight")
    # In a fixed order no batch has more than B examples.
    made(kind, sampling="shuffled", batch_size=1, sensitivity="tight")
