"""Clipping of per-example gradients in a geometry, in float64.

A geometry is a centre m and a denominator b (StP: b = √ν̂ + es1, m = 0). The
clipped vector of example j is w_j = clip((g_j - m) / b, ζ). Masks act after
transform and clip: a masked row gives exactly 0, never clip(-m / b).

Example gradients are the rows of one (n, d) matrix over all variables, because
they are clipped together.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Shape = tuple[int, ...]


def flatten(arrays: Sequence[NDArray]) -> Array:
    """Returns all variables as one float64 vector (C order, list order)."""
    return np.concatenate(
        [np.asarray(a, np.float64).reshape(-1) for a in arrays]
    )


def flatten_examples(
    per_example: Sequence[NDArray], shapes: Sequence[Shape]
) -> Array:
    """Returns per-example gradients (n, *shape) as the rows of (n, d)."""
    return np.concatenate(
        [
            np.asarray(g, np.float64).reshape(len(g), math.prod(shape))
            for g, shape in zip(per_example, shapes, strict=True)
        ],
        axis=1,
    )


def split(vector: Array, shapes: Sequence[Shape]) -> list[Array]:
    """Undoes `flatten`."""
    ends = np.cumsum([math.prod(shape) for shape in shapes])
    pieces = np.split(vector, ends[:-1])
    return [p.reshape(s) for p, s in zip(pieces, shapes, strict=True)]


def project(v: Array, radius: float) -> Array:
    """Returns Π(v), the nearest point of the ball; equals clip(v, radius)."""
    norm = np.sqrt(np.sum(v**2))
    return v if norm <= radius else v * (radius / norm)


def contributes(
    g: Array, *, center: Array | float = 0.0, denominator: Array | float = 1.0
) -> NDArray[np.bool_]:
    """Says of each row whether its transform and its norm are finite.

    Decided in float32, as the package computes: in float64 a gradient of 1e32
    over a denominator of 1e-8 is finite, in float32 it is not. A row whose sum
    of squares overflows (norm above 1.8e19) has no finite norm either.
    """
    with np.errstate(all="ignore"):
        w = (np.float32(g) - np.float32(center)) / np.float32(denominator)
        norm = np.sqrt(np.sum(w * w, axis=1, dtype=np.float32))
    return np.isfinite(w).all(axis=1) & np.isfinite(norm)


def clipped(
    g: Array,
    mask: NDArray[np.bool_],
    zeta: float,
    *,
    center: Array | float = 0.0,
    denominator: Array | float = 1.0,
) -> Array:
    """Returns the (n, d) matrix of contributions, each of norm at most ζ."""
    keep = np.asarray(mask, bool) & contributes(
        g, center=center, denominator=denominator
    )
    out = np.zeros_like(g)
    w = (g[keep] - center) / denominator
    norm = np.sqrt(np.sum(w**2, axis=1, keepdims=True))
    # A norm of 0 is within every ball; it must not be divided by.
    factor = np.where(norm > zeta, zeta / np.where(norm > 0, norm, 1.0), 1.0)
    out[keep] = w * factor
    return out


def clipped_mean(
    g: Array,
    mask: NDArray[np.bool_],
    zeta: float,
    batch_size: float,
    *,
    center: Array | float = 0.0,
    denominator: Array | float = 1.0,
) -> Array:
    """Returns ḡ = (1/B) Σ_j clip((g_j - m)/b, ζ), B the expected batch size."""
    w = clipped(g, mask, zeta, center=center, denominator=denominator)
    return np.sum(w, axis=0) / batch_size
