"""Matrix factorization with a full C: the least error, for small problems.

References: Denisov et al., 2022, arXiv 2202.08312 (one epoch); Choquette-Choo
et al., 2022, arXiv 2211.06530 (several).
"""

import dataclasses
import functools
import math
from collections.abc import Sequence

import keras
import numpy as np
from numpy.typing import ArrayLike, NDArray

from tf_dpadaptive import _validate
from tf_dpadaptive.noise import sensitivity, strategies_dense
from tf_dpadaptive.noise.matrix import MatrixMechanism
from tf_dpadaptive.noise.mechanism import NoiseStream, Shape, WhiteNoise
from tf_dpadaptive.noise.streams import (
    RegeneratingStream,
    RememberingStream,
    Span,
    size,
)

Array = NDArray[np.float64]

#: Up to so many floats (64 MiB) the white noise of a whole run is kept.
KEPT_AT_MOST = 2**24


@keras.saving.register_keras_serializable(package="tf_dpadaptive")
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class DenseMF(MatrixMechanism):
    """Noise correlated by the optimal lower-triangular C.

    Args:
        epochs: How often an example takes part, every ⌈num_steps / epochs⌉
            steps. 1 is the optimum for one participation. With more, columns
            of C that far apart are orthogonal.

    Privacy: one participation has sensitivity 1 exactly, and `epochs` of them,
    exactly ⌈num_steps / epochs⌉ steps apart, √epochs. For participations that
    only have a least separation `sensitivity` is an upper bound.

    Cost of step t: all t + 1 rows of white noise, kept where that takes at most
    64 MiB and drawn again otherwise. The optimisation is O(num_steps³):
    seconds at 256 steps, a minute at 2000.
    """

    epochs: int = 1

    def __post_init__(self) -> None:
        """Checks the arguments."""
        _validate.positive_integer(epochs=self.epochs)

    def strategy_matrix(self, num_steps: int) -> Array:
        """See `MatrixMechanism.strategy_matrix`."""
        _validate.positive_integer(num_steps=num_steps)
        if self.epochs == 1:
            return strategies_dense.single_epoch(num_steps)
        if self.epochs > num_steps:
            raise ValueError(
                "`epochs` must be at most num_steps. Received: epochs="
                f"{self.epochs}, num_steps={num_steps}."
            )
        return strategies_dense.multi_epoch(num_steps, self.epochs)

    def noising_matrix(self, num_steps: int) -> Array:
        """See `MatrixMechanism.noising_matrix`."""
        from scipy.linalg import solve_triangular

        return solve_triangular(
            self.strategy_matrix(num_steps), np.eye(num_steps), lower=True
        )

    def sensitivity(
        self, num_steps: int, min_separation: int, max_participations: int
    ) -> float:
        """Returns an upper bound relative to one participation.

        See `NoiseMechanism.sensitivity` and `sensitivity.separated_bound`.
        """
        most = sensitivity.participations(
            num_steps, min_separation, max_participations
        )
        if most == 1:
            return 1.0
        return _separated_bound(self, num_steps, min_separation, most)

    def periodic_sensitivity(
        self, num_steps: int, period: int, max_participations: int
    ) -> float:
        """Returns an upper bound for participations exactly `period` apart.

        That is how examples take part when one order is kept in every epoch.

        Args:
            num_steps: n >= 1.
            period: Steps between two participations, >= 1.
            max_participations: k >= 1.
        """
        most = sensitivity.participations(num_steps, period, max_participations)
        if most == 1 or (
            self.epochs > 1 and period == math.ceil(num_steps / self.epochs)
        ):
            return math.sqrt(most)
        c = self.strategy_matrix(num_steps)
        return sensitivity.fixed_epoch_bound(c.T @ c, period, most)

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
        rows, columns = np.tril_indices(n)
        noising = self.noising_matrix(n)
        return full_stream(
            white,
            shapes,
            num_steps,
            stream,
            # Row t from its diagonal backwards, after t (t + 1) / 2 others.
            weights=noising[rows, rows - columns],
            span=lambda step: (step * (step + 1) // 2, step + 1),
        )


@functools.lru_cache(maxsize=32)
def _separated_bound(
    mechanism: DenseMF, num_steps: int, min_separation: int, most: int
) -> float:
    """Kept: it takes seconds, and calibration asks again and again."""
    c = mechanism.strategy_matrix(num_steps)
    return sensitivity.separated_bound(c.T @ c, min_separation, most)


def full_stream(
    white: WhiteNoise,
    shapes: Sequence[Shape],
    num_steps: int | None,
    stream: int,
    *,
    weights: ArrayLike,
    span: Span,
) -> NoiseStream:
    """Returns a stream for rows as long as the run, kept or drawn again.

    Args:
        white: Source of white noise.
        shapes: Shapes of the variables.
        num_steps: n.
        stream: Which of the releases of a step this is.
        weights: Numbers of C⁻¹; those of a step by falling column.
        span: Gives the weights of step t as (first, count).
    """
    total = (num_steps or 1) * sum(size(shape) for shape in shapes)
    kind = RememberingStream if total <= KEPT_AT_MOST else RegeneratingStream
    return kind(white, shapes, num_steps, stream, weights=weights, span=span)
