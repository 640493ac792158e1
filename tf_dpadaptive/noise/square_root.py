"""The square root of the prefix sum: near-optimal, with nothing to optimise.

    C = A^½:  c_0 = 1,  c_k = c_{k-1} (2k - 1)/(2k)

Reference: Henzinger, Upadhyay and Upadhyay, "Almost tight error bounds on
differentially private continual counting", 2022, arXiv 2211.05006.
"""

import dataclasses
from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from tf_dpadaptive.noise import strategies
from tf_dpadaptive.noise.dense import full_stream
from tf_dpadaptive.noise.matrix import ToeplitzMechanism
from tf_dpadaptive.noise.mechanism import NoiseStream, Shape, WhiteNoise

Array = NDArray[np.float64]


@keras.saving.register_keras_serializable(package="tf_dpadaptive")
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class SquareRoot(ToeplitzMechanism):
    """Noise correlated by the square root of the prefix-sum matrix.

    Privacy: one participation has sensitivity 1 exactly; several that of the
    first column added to itself, exact too.

    Cost of step t: all t + 1 rows of white noise, kept for small models and
    drawn again for large ones (see `dense`). For large models and long runs
    `BLT` has nearly the same error at a fixed cost.

    >>> from tf_dpadaptive import noise
    >>> round(noise.SquareRoot().scale(100), 4)
    1.591
    """

    def coefficients(self, num_steps: int) -> Array:
        """See `ToeplitzMechanism.coefficients`."""
        return strategies.square_root(num_steps)

    def inverse_coefficients(self, num_steps: int) -> Array:
        """See `ToeplitzMechanism.inverse_coefficients`."""
        return strategies.square_root_inverse(num_steps)

    def stream(
        self,
        white: WhiteNoise,
        shapes: Sequence[Shape],
        *,
        num_steps: int | None,
        stream: int = 0,
    ) -> NoiseStream:
        """See `NoiseMechanism.stream`."""
        n = num_steps or 1
        weights = self.scale(n) * self.inverse_coefficients(n)
        return full_stream(
            white,
            shapes,
            num_steps,
            stream,
            weights=weights,
            span=lambda step: (tf.zeros_like(step), step + 1),
        )
