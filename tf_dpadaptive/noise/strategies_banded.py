r"""The best banded C and the best banded C⁻¹ among Toeplitz matrices.

Both minimise sens² · mean(e), the squared RMSE of the prefix sums at
sensitivity 1, by L-BFGS; the gradient is that of `strategies`.

References: Choquette-Choo et al., "(Amplified) banded matrix factorization",
2023, arXiv 2306.08153 (banded C); Kalinin et al., "Back to square roots", 2025,
arXiv 2505.12128 (banded C⁻¹).
"""

import functools
import math

import numpy as np
from numpy.typing import NDArray

from tf_dpadaptive.noise import strategies as toeplitz
from tf_dpadaptive.noise import strategies_cache
from tf_dpadaptive.noise.strategies_minimise import minimise

Array = NDArray[np.float64]


def log_banded_error(
    coefficients: Array, num_steps: int
) -> tuple[float, Array]:
    """Returns log(c·c · mean(e)) of a banded C, and its gradient.

    With at most b bands c·c is the squared sensitivity of one participation,
    and any number of them, b apart, multiplies it by the same factor.
    """
    c, n = coefficients, num_steps
    weights = 1.0 - np.arange(n) / n  # mean over t of Σ_{j <= t}
    s = toeplitz.solve(c, np.ones(n))
    error = np.sum(weights * s * s)
    u = toeplitz.solve(c, (2 * weights * s)[::-1])[::-1]
    slope = -np.array([u[m:] @ s[: n - m] for m in range(c.size)])
    norm = c @ c
    return (
        float(np.log(norm * error)),
        2 * c / norm + slope / error,
    )


def log_banded_inverse_error(
    point: Array, num_steps: int, epochs: int
) -> tuple[float, Array]:
    """Returns log(sens² · mean(e)) for a banded C⁻¹, and its gradient.

    Args:
        point: y_1, ..., y_{bands-1}, any numbers: C⁻¹ has the coefficients
            (1, -x) with x_m = exp(y_m) / (1 + Σ exp(y)), so that x > 0 and
            Σ x < 1, which keeps C bounded.
        num_steps: n.
        epochs: How often an example takes part, every ⌈n / epochs⌉ steps.
    """
    n, separation = num_steps, math.ceil(num_steps / epochs)
    x = _simplex(point)
    d = np.zeros(n)
    d[: x.size + 1] = np.concatenate([[1.0], -x])[:n]
    weights = 1.0 - np.arange(n) / n
    s = np.cumsum(d)
    error = np.sum(weights * s * s)
    c = toeplitz.inverse(np.trim_zeros(d, "b"), n)
    moved = toeplitz.repeated(c, separation, epochs)
    norm = moved @ moved
    # s_j sums d_m over m <= j, so the slope of d_m sums over j >= m; and
    # C = 1/d, so dc = -c * c * dd.
    from_error = np.cumsum((2 * weights * s)[::-1])[::-1]
    pulled = toeplitz.repeated(2 * moved, separation, epochs, transpose=True)
    v = toeplitz.solve(np.trim_zeros(d, "b"), pulled[::-1])[::-1]
    slope = np.zeros(x.size)
    for m in range(1, min(x.size, n - 1) + 1):
        slope[m - 1] = (v[m:] @ c[: n - m]) / norm - from_error[m] / error
    return float(np.log(norm * error)), x * (slope - slope @ x)


def _simplex(point: Array) -> Array:
    top = max(0.0, float(np.max(point, initial=0.0)))
    e = np.exp(point - top)
    return e / (np.exp(-top) + np.sum(e))


@functools.lru_cache(maxsize=64)
def banded(num_steps: int, bands: int) -> Array:
    """Returns the c of least c·c · mean(e), shape (min(bands, num_steps),).

    Args:
        num_steps: n >= 1.
        bands: Number of coefficients, >= 1.
    """
    bands = min(bands, num_steps)
    found = strategies_cache.cached(
        "banded_toeplitz",
        {"num_steps": num_steps, "bands": bands},
        lambda: {
            "c": _unit(
                minimise(
                    f"BandedMF({bands}) for {num_steps} steps",
                    lambda c: log_banded_error(c, num_steps),
                    toeplitz.square_root(bands),
                )
            )
        },
        lambda arrays: log_banded_error(
            strategies_cache.shaped(arrays, "c", bands), num_steps
        )[0],
    )
    return strategies_cache.frozen(found["c"])


def _unit(c: Array) -> Array:
    return c / np.linalg.norm(c) * np.sign(c[0])


@functools.lru_cache(maxsize=64)
def banded_inverse(num_steps: int, bands: int, epochs: int) -> Array:
    """Returns the d of C⁻¹ of least sens² · mean(e), shape (bands,).

    Args:
        num_steps: n >= 1.
        bands: Number of coefficients of C⁻¹, >= 1; 2 is λ-CGD.
        epochs: How often an example takes part, every ⌈n / epochs⌉ steps.
    """
    bands = min(bands, num_steps)
    if bands == 1:
        return strategies_cache.frozen(np.ones(1))
    x = -toeplitz.square_root_inverse(bands)[1:]
    found = strategies_cache.cached(
        "banded_inverse",
        {"num_steps": num_steps, "bands": bands, "epochs": epochs},
        lambda: {
            "point": minimise(
                f"BandedInverse({bands}) for {num_steps} steps",
                lambda point: log_banded_inverse_error(
                    point, num_steps, epochs
                ),
                np.log(x / (1.0 - np.sum(x))),
                bounds=[(-40.0, 40.0)] * x.size,
            )
        },
        lambda arrays: log_banded_inverse_error(
            strategies_cache.shaped(arrays, "point", bands - 1),
            num_steps,
            epochs,
        )[0],
    )
    return strategies_cache.frozen(
        np.concatenate([[1.0], -_simplex(found["point"])])
    )
