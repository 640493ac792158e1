r"""Buffered linear Toeplitz noise: near the optimum with a few buffers.

    c_0 = 1,  c_k = Σ_i ω_i θ_i^{k-1};   x = z - ω·S,  S ← θS + x

References: Dvijotham et al., "Efficient and near-optimal noise generation for
streaming differential privacy", 2024, arXiv 2404.16706; McMahan, Xu and Zhang,
"A hassle-free algorithm for private learning in practice", 2024, arXiv
2408.08868.
"""

import dataclasses
from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from tf_dpadaptive import _validate
from tf_dpadaptive.noise import strategies_blt
from tf_dpadaptive.noise.matrix import ToeplitzMechanism
from tf_dpadaptive.noise.mechanism import NoiseStream, Shape, WhiteNoise
from tf_dpadaptive.noise.streams import CorrelatedStream, buffer, size

Array = NDArray[np.float64]


class BufferedStream(CorrelatedStream):
    """Keeps the scaled state ||c||·S, `buffers` times the variables.

    Args:
        white: Source of white noise.
        shapes: Shapes of the variables.
        num_steps: n.
        stream: Which of the releases of a step this is.
        blt: Parameters.
        scale: ||c||.
    """

    def __init__(
        self,
        white: WhiteNoise,
        shapes: Sequence[Shape],
        num_steps: int | None,
        stream: int,
        *,
        blt: strategies_blt.Buffers,
        scale: float,
    ) -> None:
        super().__init__(white, shapes, num_steps, stream)
        # x = z - ω·S and S ← θS + x in one product: rows of x, then of S.
        product = np.diag(blt.theta) - blt.omega
        product = np.concatenate([-blt.omega[None], product])
        with tf.init_scope():
            self._scale = buffer(np.float32(scale), "noise_scale")
            self._product = buffer(product.astype(np.float32), "noise_product")
            self._states = [
                buffer(tf.zeros([blt.omega.size, size(s)]), "noise_state")
                for s in self._shapes
            ]
        self.buffers = [self._scale, self._product, *self._states]

    def _next(self, step: tf.Tensor, one: tf.Tensor) -> list[tf.Tensor]:
        scale = one * self._scale
        noises: list[tf.Tensor] = []
        for variable, state in enumerate(self._states):
            fresh = scale * self._white_noise(step, variable)
            moved = tf.matmul(self._product, state)
            moved = moved + tf.reshape(fresh, [1, -1])
            state.assign(moved[1:])
            noises.append(tf.reshape(moved[0], self._shapes[variable]))
        return noises


@keras.saving.register_keras_serializable(package="tf_dpadaptive")
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class BLT(ToeplitzMechanism):
    """Noise correlated by a sum of decaying exponentials.

    Args:
        buffers: How many, >= 1; 2 to 4 are near the optimum.
        epochs: How often an example takes part, every ⌈num_steps / epochs⌉
            steps: what the decays are optimised for (the largest error of the
            prefix sums).

    Privacy: one participation has sensitivity 1 exactly; several that of the
    first column added to itself, exact too. C is full, so that sampling does
    not amplify.

    Cost of a step: one draw of white noise and a pass over `buffers` vectors,
    which are kept: buffers · 4 bytes a parameter, for any number of steps.
    """

    buffers: int
    epochs: int = 1

    def __post_init__(self) -> None:
        """Checks the arguments."""
        _validate.positive_integer(buffers=self.buffers, epochs=self.epochs)

    def coefficients(self, num_steps: int) -> Array:
        """See `ToeplitzMechanism.coefficients`."""
        return self._parameters(num_steps).coefficients(num_steps)

    def inverse_coefficients(self, num_steps: int) -> Array:
        """See `ToeplitzMechanism.inverse_coefficients`."""
        return self._parameters(num_steps).inverse_coefficients(num_steps)

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
        return BufferedStream(
            white,
            shapes,
            num_steps,
            stream,
            blt=self._parameters(n),
            scale=self.scale(n),
        )

    def _parameters(self, num_steps: int) -> strategies_blt.Buffers:
        _validate.positive_integer(num_steps=num_steps)
        return strategies_blt.optimal(num_steps, self.buffers, self.epochs)
