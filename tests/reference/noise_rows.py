"""Rows of correlated noise, C⁻¹z, and their variances r_t, for a dense C."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tests.reference.clip import Array, Shape


def at_sensitivity_one(c: Array) -> Array:
    """Returns C over its largest column norm (one participation)."""
    return c / np.sqrt(np.max(np.sum(c**2, axis=0)))


def noising_matrix(c: Array) -> Array:
    """Returns C⁻¹ of a lower-triangular C by forward substitution."""
    if np.any(np.triu(c, 1)):
        raise ValueError(f"`c` must be lower-triangular. Received: c={c}.")
    inverse = np.zeros_like(c, np.float64)
    for t in range(len(c)):
        inverse[t, t] = 1.0
        inverse[t] -= c[t, :t] @ inverse[:t]
        inverse[t] /= c[t, t]
    return inverse


def row_norms(c: Array) -> Array:
    """Returns r_t = Σ_j Cinv[t, j]² for t = 1..T (SQUARED row norms)."""
    return np.sum(noising_matrix(c) ** 2, axis=1)


def rows(c: Array, z: NDArray) -> Array:
    """Returns (C⁻¹z)_t for white noise z of shape (T, ...)."""
    return np.tensordot(noising_matrix(c), z, axes=1)


def lambda_cgd(steps: int, decay: float) -> Array:
    """Returns C with C⁻¹ = bidiagonal(1, -decay): C[t, j] = decay^(t-j)."""
    lag = np.subtract.outer(np.arange(steps), np.arange(steps))
    return np.where(lag >= 0, float(decay) ** np.maximum(lag, 0), 0.0)


def replay(
    c: Array, shapes: Sequence[Shape], *, streams: int = 1, seed: int = 0
) -> list[list[list[Array]]]:
    """Returns noise[t][stream][variable], unit-σ rows (C⁻¹z)_t.

    The streams (and variables) have independent z and the same C.
    """
    rng = np.random.default_rng(seed)
    drawn = [
        [rows(c, rng.standard_normal((len(c), *shape))) for shape in shapes]
        for _ in range(streams)
    ]
    return [[[v[t] for v in stream] for stream in drawn] for t in range(len(c))]
