"""Noise correlated by a banded C⁻¹; with two bands, λ-CGD.

    noise_t = ||c|| (z_t + d_1 z_{t-1} + ... + d_{b-1} z_{t-b+1}),  c = 1/d

Reference: Kalinin et al., "Back to square roots: an optimal bound on the matrix
factorization error for multi-epoch DP-SGD", 2025, arXiv 2505.12128.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from tf_dpadaptive import _validate
from tf_dpadaptive.noise import strategies as toeplitz
from tf_dpadaptive.noise import strategies_banded
from tf_dpadaptive.noise.matrix import ToeplitzMechanism
from tf_dpadaptive.noise.mechanism import NoiseStream, Shape, WhiteNoise
from tf_dpadaptive.noise.ring import (
    Move,
    RingStream,
    lags_of_slots,
    weighted,
)
from tf_dpadaptive.noise.streams import RegeneratingStream

Array = NDArray[np.float64]


@keras.saving.register_keras_serializable(package="tf_dpadaptive")
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class BandedInverse(ToeplitzMechanism):
    """Noise of which each step subtracts some of the last steps' noise.

    Args:
        bands: Number of diagonals of C⁻¹, >= 1. With 2 it is (1, -λ): λ-CGD.
            The attribute is `inverse_bands`; `bands`, the number of diagonals
            of C, is None: C is full.
        epochs: How often an example takes part, every ⌈num_steps / epochs⌉
            steps: what the diagonals are optimised for.
        regenerate: Whether past white noise is drawn again instead of kept.
            The noise is the same.

    Privacy: one participation has sensitivity 1 exactly; for several see
    `ToeplitzMechanism.sensitivity`. C is full, so that sampling does not
    amplify.

    Cost of a step: `bands` draws of white noise, those of the past again, and
    no memory; or, with `regenerate=False`, one draw and the last bands - 1 of
    them kept: (bands - 1) · 4 bytes a parameter.
    """

    bands: dataclasses.InitVar[int]  # type: ignore[assignment]
    epochs: int = 1
    regenerate: bool = True
    inverse_bands: int = dataclasses.field(init=False)

    def __post_init__(self, bands: int) -> None:
        """Checks the arguments."""
        _validate.positive_integer(bands=bands, epochs=self.epochs)
        object.__setattr__(self, "inverse_bands", int(bands))

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        return {
            "bands": self.inverse_bands,
            "epochs": self.epochs,
            "regenerate": self.regenerate,
        }

    def coefficients(self, num_steps: int) -> Array:
        """See `ToeplitzMechanism.coefficients`."""
        return toeplitz.inverse(self._bands(num_steps), num_steps)

    def inverse_coefficients(self, num_steps: int) -> Array:
        """See `ToeplitzMechanism.inverse_coefficients`."""
        d = self._bands(num_steps)
        return np.concatenate([d, np.zeros(num_steps - d.size)])

    def _bands(self, num_steps: int) -> Array:
        _validate.positive_integer(num_steps=num_steps)
        return strategies_banded.banded_inverse(
            num_steps, self.inverse_bands, self.epochs
        )

    def stream(
        self,
        white: WhiteNoise,
        shapes: Sequence[Shape],
        *,
        num_steps: int | None,
        stream: int = 0,
    ) -> NoiseStream:
        """See `NoiseMechanism.stream`."""
        weights = self.scale(num_steps or 1) * self._bands(num_steps or 1)
        if self.regenerate or weights.size == 1:
            return RegeneratingStream(
                white,
                shapes,
                num_steps,
                stream,
                weights=weights,
                span=lambda step: (
                    tf.zeros_like(step),
                    tf.minimum(step + 1, weights.size),
                ),
            )
        kept = weights.size - 1

        def move(step: tf.Tensor, one: tf.Tensor, numbers: Any) -> Move:
            past = one * tf.gather(numbers, 1 + lags_of_slots(step, kept))

            def advance(
                white: tf.Tensor, rows: tf.Tensor
            ) -> tuple[tf.Tensor, tf.Tensor]:
                return white, one * numbers[0] * white + weighted(past, rows)

            return Move(tf.math.floormod(step, kept), advance)

        return RingStream(
            white,
            shapes,
            num_steps,
            stream,
            kept=kept,
            numbers=[weights],
            move=move,
        )
