"""Methods under noise that is correlated over the steps, against NumPy.

What depends on r_t = ||row t of C⁻¹||² (the bias of bias correction, the share
of noise in AdaCliP's variance) must follow it step by step; the correlation
itself acts where noise is added, in scaled space under scale-then-privatize.
"""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.optimizers import optimizers_test as contracts
from tests.optimizers.bench import Bench
from tests.optimizers.contract import (
    CLIP,
    SHAPES,
    STEPS,
    Contract,
    plan_of,
)
from tests.reference import noise_rows, post_processing, replay
from tf_dpadaptive import PrivacyPlan
from tf_dpadaptive import optimizers as dpa
from tf_dpadaptive.noise.banded import BandedMF
from tf_dpadaptive.noise.banded_inverse import BandedInverse
from tf_dpadaptive.noise.mechanism import (
    NoiseMechanism,
    NoiseStream,
    Shape,
    WhiteNoise,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*feeds on its own noise")
KNOW_ROW_NORMS = [
    contracts.AdaCliPTest,
    contracts.DPAdamBiasCorrectedTest,
    contracts.DPAdagradBiasCorrectedTest,
]


class DPPostProcessingTest(Contract):
    """Around Keras' SGD, which is what the reference does."""

    __test__ = False

    def make(self, plan: Any, **arguments: Any) -> Any:
        given = {"l2_norm_clip": CLIP, "seed": 1, **arguments}
        return dpa.DPPostProcessing(
            keras.optimizers.SGD(0.1), plan=plan, **given
        )

    def reference(self, shapes: Any, **arguments: Any) -> Any:
        return post_processing.SGD(shapes, **arguments)


ALL = [
    *(
        contract
        for name, contract in vars(contracts).items()
        if name.endswith("Test")
    ),
    DPPostProcessingTest,
]


def test_every_optimizer_is_here():
    kinds = {type(kind().make(plan_of())).__name__ for kind in ALL}
    assert kinds == set(dpa.__all__) - {"DPOptimizer", "recommend"}


class Silent(NoiseStream):
    """Stands where a bench puts its replayed rows."""

    def next(self, step: tf.Tensor) -> list[tf.Tensor]:
        raise NotImplementedError


class Bidiagonal(NoiseMechanism):
    """C⁻¹ = (1, -1/2) on two diagonals, at sensitivity 1: only its numbers."""

    @staticmethod
    def strategy(num_steps: int) -> np.ndarray:
        return noise_rows.at_sensitivity_one(
            noise_rows.lambda_cgd(num_steps, 0.5)
        )

    def row_norms_squared(self, num_steps: int) -> np.ndarray:
        return noise_rows.row_norms(self.strategy(num_steps))

    def stream(
        self,
        white: WhiteNoise,
        shapes: Sequence[Shape],
        *,
        num_steps: int | None,
        stream: int = 0,
    ) -> NoiseStream:
        return Silent()

    def sensitivity(self, *_: Any) -> float:
        raise NotImplementedError


def correlated(noise: NoiseMechanism, steps: int = STEPS) -> PrivacyPlan:
    return plan_of(noise=noise, num_steps=steps, sampling="shuffled")


def replayed(contract: Contract, row_norms: Any) -> float:
    """Deviation under the rows of the bidiagonal example."""
    bench = contract.bench(correlated(Bidiagonal()))
    rows = noise_rows.replay(
        Bidiagonal.strategy(STEPS),
        SHAPES,
        streams=bench.optimizer.num_releases,
        seed=6,
    )
    return contract.deviation(bench, rows=rows, row_norms=row_norms)


@pytest.mark.parametrize("kind", KNOW_ROW_NORMS)
def test_methods_follow_the_reference_under_the_bidiagonal_example(kind):
    row_norms = noise_rows.row_norms(Bidiagonal.strategy(STEPS))
    np.testing.assert_allclose(row_norms[:3], [4 / 3, 5 / 3, 5 / 3], rtol=1e-6)
    assert replayed(kind(), row_norms) < kind.tolerance


@pytest.mark.parametrize("kind", KNOW_ROW_NORMS)
def test_another_row_norm_would_be_seen(kind):
    # 5/3 is right from the second step on.
    row_norms = np.full(STEPS, 5 / 3)
    assert replayed(kind(), row_norms) > 2 * kind.tolerance


@pytest.mark.parametrize(
    ("kind", "noise"),
    [
        *[(kind, BandedMF(4)) for kind in ALL],
        *[(kind, BandedInverse(2)) for kind in KNOW_ROW_NORMS],
    ],
)
def test_methods_follow_the_reference_with_the_mechanism_itself(kind, noise):
    # The package draws its own noise; the reference gets C⁻¹z by the dense
    # matrix from the same white noise.
    contract = kind()
    optimizer = contract.make(correlated(noise))
    bench = Bench(optimizer, replay.parameters(SHAPES), replayed=False)
    inverse = noise.noising_matrix(STEPS)
    white = [
        [
            np.array([optimizer._keys.normal(t, i, k, s) for t in range(STEPS)])
            for i, s in enumerate(SHAPES)
        ]
        for k in range(optimizer.num_releases)
    ]
    rows = [
        [[np.tensordot(inverse[t], z, 1) for z in drawn] for drawn in white]
        for t in range(STEPS)
    ]
    row_norms = np.sum(inverse**2, axis=1)
    worst = contract.deviation(bench, rows=rows, row_norms=row_norms)
    assert worst < kind.tolerance


def test_bias_of_adam_is_not_that_of_independent_noise():
    # Hand-made: β2 = 1/2, r = (4/3, 5/3): φ_1 = 2/3 τ², φ_2 = 7/6 τ².
    optimizer = contracts.DPAdamBiasCorrectedTest().make(
        correlated(Bidiagonal(), 80), beta_2=0.5
    )
    variance = optimizer.noise_stddev**2
    bias = [float(optimizer.noise_bias(float(t))) for t in (1, 2)]
    np.testing.assert_allclose(
        np.array(bias) / variance, [4 / 3, (7 / 6) / (3 / 4)], rtol=1e-5
    )
