r"""L2 sensitivity of Cx to one example that takes part several times.

An example of clip norm 1 takes part in the steps of a set S, so Cx moves by
Σ_{i ∈ S} C[:, i] g_i with ||g_i|| ≤ 1. The sensitivity is the largest norm of
that sum over all S that the sampling allows:

* separated(b, k): at most k steps, any two of them at least b apart;
* fixed epochs(b, k): steps j, j + b, ..., at most k of them.

Only rules that hold are here: exact where they say so, else an upper bound, and
an error where a rule does not apply.

References: Choquette-Choo et al., "Multi-epoch matrix factorization mechanisms
for private machine learning", 2022, arXiv 2211.06530 (fixed epochs);
"(Amplified) banded matrix factorization", 2023, arXiv 2306.08153 (banded);
Kalinin and Lampert, "Banded square root matrix factorization for DP model
training", 2024, arXiv 2405.13763 (Toeplitz).
"""

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from tf_dpadaptive import _validate

Array = NDArray[np.float64]


def participations(
    num_steps: int, min_separation: int, max_participations: int
) -> int:
    """Returns how often an example can take part: min(k, ⌈n/b⌉).

    Args:
        num_steps: n >= 1.
        min_separation: b >= 1; b = 1 allows consecutive steps.
        max_participations: k >= 1.

    Raises:
        ValueError: if an argument is not a whole number >= 1.
    """
    _validate.positive_integer(
        num_steps=num_steps,
        min_separation=min_separation,
        max_participations=max_participations,
    )
    return min(int(max_participations), math.ceil(num_steps / min_separation))


def single(strategy: Array) -> float:
    """Returns the sensitivity of one participation: the largest column norm.

    Args:
        strategy: C, shape (rows, steps).
    """
    return float(np.sqrt(np.max(np.sum(np.square(strategy), axis=0))))


def largest_separated_sum(
    weights: Array, min_separation: int, max_participations: int
) -> float:
    """Returns the largest Σ_{i ∈ S} weights[i] over separated(b, k) sets.

    Args:
        weights: Shape (n,), >= 0.
        min_separation: b >= 1.
        max_participations: k >= 1.
    """
    most = participations(weights.size, min_separation, max_participations)
    if min_separation == 1:
        return float(np.sum(np.sort(weights)[::-1][:most]))
    *_, best = _best_from(weights[None], min_separation, most)
    return float(best[0, 0])


def banded(
    strategy: Array, min_separation: int, max_participations: int
) -> float:
    """Returns the exact sensitivity of C with at most b bands.

    Columns b or more apart share no row, so their squared norms add up.

    Args:
        strategy: C, lower-triangular, shape (n, n), C[t, i] = 0 if t - i >= b.
        min_separation: b >= 1.
        max_participations: k >= 1.

    Raises:
        ValueError: if C has more than b bands and takes k >= 2: the columns of
            one example then overlap, and the sum of their squares is too small.
    """
    most = participations(strategy.shape[1], min_separation, max_participations)
    if most == 1:
        return single(strategy)
    rows, columns = np.nonzero(strategy)
    if np.any(columns > rows) or np.any(rows - columns >= min_separation):
        raise ValueError(
            "A strategy with at most `min_separation` bands is needed. "
            f"Received: min_separation={min_separation}, bands="
            f"{int(np.max(rows - columns)) + 1}. With more bands the columns "
            "of one example overlap. Use fewer bands."
        )
    squares = np.sum(np.square(strategy), axis=0)
    return math.sqrt(
        largest_separated_sum(squares, min_separation, max_participations)
    )


def toeplitz(
    coefficients: Array,
    num_steps: int,
    min_separation: int,
    max_participations: int,
) -> float:
    """Returns the exact sensitivity of C[t, i] = c[t - i], c falling.

    The worst set is 0, b, 2b, ...: with c >= 0 every column counts with its
    sign, and with c not increasing the closest columns overlap most.

    Args:
        coefficients: c >= 0, not increasing, zero beyond its end.
        num_steps: n >= 1.
        min_separation: b >= 1.
        max_participations: k >= 1.

    Raises:
        ValueError: if c has a negative or an increasing coefficient.
    """
    most = participations(num_steps, min_separation, max_participations)
    c = np.zeros(num_steps)
    c[: min(num_steps, coefficients.size)] = coefficients[:num_steps]
    if most > 1 and (np.any(c < 0) or np.any(np.diff(c) > 0)):
        raise ValueError(
            "`coefficients` must be >= 0 and not increasing. Received: "
            f"coefficients={coefficients!r}. Use `separated_bound`."
        )
    total = c.copy()
    for j in range(1, most):
        total[j * min_separation :] += c[: num_steps - j * min_separation]
    return float(np.linalg.norm(total))


def fixed_epoch_bound(
    gram: Array, min_separation: int, max_participations: int
) -> float:
    """Returns a bound for any C under fixed epochs(b, k), exact if X >= 0.

    Args:
        gram: X = CᵀC, shape (n, n).
        min_separation: b >= 1, the distance of an example's steps.
        max_participations: k >= 1.
    """
    n = gram.shape[0]
    most = participations(n, min_separation, max_participations)
    largest = 0.0
    for first in range(n):
        steps = np.arange(first, n, min_separation)[:most]
        largest = max(
            largest, float(np.sum(np.abs(gram[np.ix_(steps, steps)])))
        )
    return math.sqrt(largest)


def separated_bound(
    gram: Array, min_separation: int, max_participations: int
) -> float:
    r"""Returns a bound for any C under separated(b, k).

    Σ_{p,q ∈ S} |X[p,q]| ≤ Σ_{p ∈ S} r_p, where r_p is the largest
    Σ_{q ∈ S'} |X[p,q]| over the allowed sets S' that hold p; then the largest
    sum of r over the allowed sets. O(n² k) time, O(n²) memory.

    Args:
        gram: X = CᵀC, shape (n, n).
        min_separation: b >= 1.
        max_participations: k >= 1.
    """
    n, b = gram.shape[0], min_separation
    most = participations(n, b, max_participations)
    size = np.abs(gram)
    diagonal = np.diag(size)
    if most == 1:
        return float(np.sqrt(np.max(diagonal)))
    if b == 1:
        others = np.sort(size - np.diag(diagonal), axis=1)
        rows = diagonal + np.sum(others[:, n - most + 1 :], axis=1)
    else:
        after = _beside_own(size, b, most - 1)
        before = _beside_own(size[::-1, ::-1], b, most - 1)[:, ::-1]
        # With i steps after p, at most most - 1 - i come before it.
        rows = diagonal + np.max(after + before[::-1], axis=0)
    return math.sqrt(largest_separated_sum(rows, b, most))


def _beside_own(size: Array, b: int, most: int) -> Array:
    """Entry [i, p]: best sum of row p over at most i steps, all >= p + b."""
    n = size.shape[0]
    step = np.arange(n)
    later = np.minimum(step + b, n - 1)
    found = [np.zeros(n)]
    for best in _best_from(size, b, most):
        found.append(np.where(step + b < n, best[step, later], 0.0))
    return np.stack(found)


def _best_from(weights: Array, b: int, most: int) -> Iterator[Array]:
    """Yields for i = 1, ..., most the largest sum over at most i steps >= t.

    Entry [r, t] is that of row r of `weights`, shape (rows, n).
    """
    best = np.zeros_like(weights)
    for _ in range(most):
        taken = weights.copy()
        if b < weights.shape[1]:
            taken[:, :-b] += best[:, b:]
        best = np.maximum.accumulate(taken[:, ::-1], axis=1)[:, ::-1]
        yield best
