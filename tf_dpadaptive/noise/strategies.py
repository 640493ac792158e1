r"""Toeplitz strategies: C[t, i] = c[t - i], as recurrences on coefficients.

With the prefix sum A as workload C⁻¹ has the coefficients d of 1/c, A·C⁻¹ those
of s = cumsum(d), and the error of step t is e_t = s_0² + ... + s_t². One
gradient serves every family of strategies: from C s = 1 follows
ds = -C⁻¹ (dc * s), so for a function f(s)

    ∂f/∂c_m = -Σ_t u_t s_{t-m},   Cᵀ u = ∂f/∂s.

All float64. The families: `strategies_banded`, `strategies_blt`; those that are
not Toeplitz: `strategies_dense`.

Reference: Henzinger, Upadhyay and Upadhyay, "Almost tight error bounds on
differentially private continual counting", 2022, arXiv 2211.05006 (square
root).
"""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def square_root(num_steps: int) -> Array:
    """Returns c_0 = 1, c_k = c_{k-1} (2k - 1)/(2k), shape (num_steps,)."""
    k = np.arange(1, num_steps)
    return np.concatenate([[1.0], np.cumprod((2 * k - 1) / (2 * k))])


def square_root_inverse(num_steps: int) -> Array:
    """Returns the coefficients of the inverse: d_0 = 1, d_k = c_k - c_{k-1}."""
    c = square_root(num_steps)
    return np.concatenate([[1.0], np.diff(c)])


def solve(coefficients: Array, right: Array) -> Array:
    """Returns x with c * x = right, cut at the length of `right`.

    Args:
        coefficients: c, few of them: O(len(c) · len(right)).
        right: Shape (n,).
    """
    from scipy.signal import lfilter

    return lfilter([1.0], coefficients, right)


def inverse(coefficients: Array, num_steps: int) -> Array:
    """Returns the first `num_steps` coefficients of 1/c."""
    return solve(coefficients, np.eye(1, num_steps)[0])


def matrix(coefficients: Array, num_steps: int) -> Array:
    """Returns the lower-triangular Toeplitz matrix, shape (n, n)."""
    from scipy.linalg import toeplitz

    column = np.zeros(num_steps)
    column[: coefficients.size] = coefficients[:num_steps]
    return toeplitz(column, np.zeros(num_steps))


def repeated(
    values: Array, separation: int, times: int, *, transpose: bool = False
) -> Array:
    """Returns Σ_{j < times} of `values` shifted by j · separation steps.

    That is what one example adds to when it takes part `times` times;
    `transpose` shifts the other way, for gradients.
    """
    total = values.copy()
    for j in range(1, times):
        shift = j * separation
        if shift >= values.size:
            break
        if transpose:
            total[:-shift] += values[shift:]
        else:
            total[shift:] += values[:-shift]
    return total
