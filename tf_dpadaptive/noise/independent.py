"""Independent Gaussian noise: C is the identity (DP-SGD).

Reference: Abadi et al., "Deep learning with differential privacy", 2016,
arXiv 1607.00133.
"""

import math
from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf

from tf_dpadaptive.noise.mechanism import (
    NoiseMechanism,
    NoiseStream,
    Shape,
    WhiteNoise,
)


class _IndependentStream(NoiseStream):
    def __init__(
        self, white: WhiteNoise, shapes: Sequence[Shape], stream: int
    ) -> None:
        self._white = white
        self._shapes = shapes
        self._stream = stream

    def next(self, step: tf.Tensor) -> list[tf.Tensor]:
        return [
            self._white.normal(step, variable, self._stream, shape)
            for variable, shape in enumerate(self._shapes)
        ]


@keras.saving.register_keras_serializable(package="tf_dpadaptive")
class Independent(NoiseMechanism):
    """Fresh, independent Gaussian noise at every step.

    Privacy: each step is one Gaussian mechanism of multiplier σ; sampling
    amplifies. Memory: none. Works for any number of steps.
    """

    correlated = False
    bands = 1

    def stream(
        self,
        white: WhiteNoise,
        shapes: Sequence[Shape],
        *,
        num_steps: int | None = None,
        stream: int = 0,
    ) -> NoiseStream:
        """See `NoiseMechanism.stream`; `num_steps` is not needed."""
        del num_steps
        return _IndependentStream(white, shapes, stream)

    def sensitivity(
        self, num_steps: int, min_separation: int, max_participations: int
    ) -> float:
        """Returns √k: participations at different steps are orthogonal."""
        most = math.ceil(num_steps / min_separation)
        return math.sqrt(min(max_participations, most))

    def row_norms_squared(self, num_steps: int) -> np.ndarray:
        """Returns ones."""
        return np.ones(num_steps)
