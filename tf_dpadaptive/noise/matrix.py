"""What the mechanisms with an explicit strategy matrix have in common."""

import abc
import dataclasses
import functools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tf_dpadaptive.noise import sensitivity, strategies_cache
from tf_dpadaptive.noise import strategies as toeplitz
from tf_dpadaptive.noise.mechanism import NoiseMechanism

Array = NDArray[np.float64]


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class MatrixMechanism(NoiseMechanism):
    """Correlated noise whose C and C⁻¹ can be written down.

    Subclasses are frozen dataclasses; their fields are the configuration.
    """

    @abc.abstractmethod
    def noising_matrix(self, num_steps: int) -> Array:
        """Returns C⁻¹ at sensitivity 1, lower-triangular, float64.

        Args:
            num_steps: n >= 1; the matrix has shape (n, n).
        """

    def strategy_matrix(self, num_steps: int) -> Array:
        """Returns C at sensitivity 1, lower-triangular, shape (n, n)."""
        from scipy.linalg import solve_triangular

        return solve_triangular(
            self.noising_matrix(num_steps), np.eye(num_steps), lower=True
        )

    def row_norms_squared(self, num_steps: int) -> Array:
        """Returns r_t = ||row t of C⁻¹||², shape (num_steps,), float64."""
        return _row_norms(self, num_steps)

    def prefix_errors_squared(self, num_steps: int) -> Array:
        """See `NoiseMechanism.prefix_errors_squared`."""
        summed = np.cumsum(self.noising_matrix(num_steps), axis=0)
        return np.sum(np.square(summed), axis=1)

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        return {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
        }


@functools.lru_cache(maxsize=32)
def _row_norms(mechanism: MatrixMechanism, num_steps: int) -> Array:
    """Kept: the rules of the optimizers ask for each variable."""
    rows = np.square(mechanism.noising_matrix(num_steps))
    return strategies_cache.frozen(np.sum(rows, axis=1))


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class ToeplitzMechanism(MatrixMechanism):
    """C[t, i] = c[t - i] / ||c||: the first column is the largest."""

    @abc.abstractmethod
    def coefficients(self, num_steps: int) -> Array:
        """Returns c, unscaled (c_0 = 1), shape (num_steps,)."""

    @abc.abstractmethod
    def inverse_coefficients(self, num_steps: int) -> Array:
        """Returns the coefficients of 1/c, unscaled, shape (num_steps,)."""

    def scale(self, num_steps: int) -> float:
        """Returns ||c||, by which the unscaled noise is multiplied."""
        return float(np.linalg.norm(self.coefficients(num_steps)))

    def noising_matrix(self, num_steps: int) -> Array:
        """See `MatrixMechanism.noising_matrix`."""
        d = self.inverse_coefficients(num_steps)
        return self.scale(num_steps) * toeplitz.matrix(d, num_steps)

    def strategy_matrix(self, num_steps: int) -> Array:
        """See `MatrixMechanism.strategy_matrix`."""
        c = self.coefficients(num_steps)
        return toeplitz.matrix(c, num_steps) / self.scale(num_steps)

    def row_norms_squared(self, num_steps: int) -> Array:
        """See `MatrixMechanism.row_norms_squared`."""
        d = self.inverse_coefficients(num_steps)
        return self.scale(num_steps) ** 2 * np.cumsum(np.square(d))

    def prefix_errors_squared(self, num_steps: int) -> Array:
        """See `MatrixMechanism.prefix_errors_squared`."""
        summed = np.cumsum(self.inverse_coefficients(num_steps))
        return self.scale(num_steps) ** 2 * np.cumsum(np.square(summed))

    def sensitivity(
        self, num_steps: int, min_separation: int, max_participations: int
    ) -> float:
        """Returns the sensitivity relative to that of one participation.

        Exact where c does not increase. Elsewhere an upper bound: that of the
        least sequence that does not increase and lies above c; C has no
        negative entry, so that a larger C is more sensitive.

        Raises:
            ValueError: if c has a negative coefficient.
        """
        most = sensitivity.participations(
            num_steps, min_separation, max_participations
        )
        if most == 1:
            return 1.0
        c = self.coefficients(num_steps)
        if np.any(c < 0):
            raise ValueError(
                f"{self!r} has a strategy with negative coefficients for "
                f"num_steps={num_steps}: the sensitivity of several "
                "participations is not known."
            )
        above = np.maximum.accumulate(c[::-1])[::-1]
        return sensitivity.toeplitz(
            above, num_steps, min_separation, most
        ) / float(np.linalg.norm(c))
