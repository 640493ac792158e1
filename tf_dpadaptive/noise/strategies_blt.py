r"""The best buffered linear Toeplitz strategy (BLT): a few decaying buffers.

    c_0 = 1,   c_k = Σ_i ω_i θ_i^{k-1},   i.e. the rational generating function
    c(x) = 1 + Σ_i ω_i x / (1 - θ_i x) = N(x) / D(x),

so that products with C and C⁻¹ are recursive filters. Minimises
sens² · max(e) = ||c||² Σ_t s_t² (s = cumsum of the coefficients of 1/c).

References: Dvijotham et al., "Efficient and near-optimal noise generation for
streaming differential privacy", 2024, arXiv 2404.16706; McMahan, Xu and Zhang,
"A hassle-free algorithm for private learning in practice", 2024, arXiv
2408.08868.
"""

import functools
import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tf_dpadaptive.noise import strategies as toeplitz
from tf_dpadaptive.noise import strategies_cache
from tf_dpadaptive.noise.strategies_minimise import minimise

Array = NDArray[np.float64]


class Buffers(NamedTuple):
    """Parameters of a BLT, both of shape (buffers,), slowest decay first.

    Attributes:
        omega: Output weights, > 0.
        theta: Decays, in [0, 1).
    """

    omega: Array
    theta: Array

    def coefficients(self, num_steps: int) -> Array:
        """Returns c, shape (num_steps,)."""
        powers = _powers(self.theta, num_steps)
        return np.concatenate([[1.0], self.omega @ powers])

    def inverse_coefficients(self, num_steps: int) -> Array:
        """Returns the coefficients of 1/c, shape (num_steps,).

        1/c is the filter S' = ΘS + x, x = r - ω·S of r; with S scaled by √ω its
        matrix Θ - √ω √ωᵀ is symmetric. The quotient of the polynomials N and D
        instead loses every digit from ten buffers on.
        """
        root = np.sqrt(self.omega)
        decays, vectors = np.linalg.eigh(
            np.diag(self.theta) - np.outer(root, root)
        )
        powers = _powers(decays, num_steps)
        return np.concatenate([[1.0], -np.square(root @ vectors) @ powers])

    def divide(self, right: Array) -> Array:
        """Returns x with c * x = right, cut at its length."""
        from scipy.signal import fftconvolve

        n = right.size
        return fftconvolve(self.inverse_coefficients(n), right)[:n]


def log_error(point: Array, num_steps: int, epochs: int) -> tuple[float, Array]:
    """Returns log(sens² · max(e)) and its gradient.

    Args:
        point: log(ω) and log(1 - θ), one after the other.
        num_steps: n.
        epochs: How often an example takes part, every ⌈n / epochs⌉ steps.
    """
    n, separation = num_steps, math.ceil(num_steps / epochs)
    blt = _parameters(point)
    c = blt.coefficients(n)
    s = blt.divide(np.ones(n))
    error = s @ s
    moved = toeplitz.repeated(c, separation, epochs)
    norm = moved @ moved
    pulled = toeplitz.repeated(2 * moved, separation, epochs, transpose=True)
    u = blt.divide((2 * s)[::-1])[::-1]
    slope = (pulled / norm - _correlate(u, s) / error)[1:]
    powers = _powers(blt.theta, n)
    by_theta = np.zeros_like(powers)
    by_theta[:, 1:] = np.arange(1, n - 1) * powers[:, :-1]
    return float(np.log(norm * error)), np.concatenate(
        [
            blt.omega * (powers @ slope),
            (blt.theta - 1.0) * blt.omega * (by_theta @ slope),
        ]
    )


@functools.lru_cache(maxsize=64)
def optimal(num_steps: int, buffers: int, epochs: int) -> Buffers:
    """Returns the BLT of least sens² · max(e).

    Args:
        num_steps: n >= 2.
        buffers: Number of buffers, >= 1.
        epochs: How often an example takes part, every ⌈n / epochs⌉ steps.
    """

    def compute() -> dict[str, Array]:
        point = minimise(
            f"BLT({buffers}) for {num_steps} steps",
            lambda point: log_error(point, num_steps, epochs),
            _start(num_steps, buffers),
            bounds=[(-30.0, 0.0)] * buffers + [(-30.0, -1e-9)] * buffers,
        )
        order = np.argsort(point[buffers:])
        return {
            "omega": point[:buffers][order],
            "theta": point[buffers:][order],
        }

    def loss(arrays: Mapping[str, Array]) -> float:
        names = ("omega", "theta")
        logs = [strategies_cache.shaped(arrays, x, buffers) for x in names]
        return log_error(np.concatenate(logs), num_steps, epochs)[0]

    found = strategies_cache.cached(
        "blt",
        {"num_steps": num_steps, "buffers": buffers, "epochs": epochs},
        compute,
        loss,
    )
    blt = _parameters(np.concatenate([found["omega"], found["theta"]]))
    return Buffers(*(strategies_cache.frozen(x) for x in blt))


def _start(num_steps: int, buffers: int) -> Array:
    """Quadrature of 1/√(πk) = ∫ θ^k dθ / (π √(1-θ)), even in log(1-θ)."""
    width = math.log(max(num_steps, 2)) / buffers
    log_decay = -width * (buffers - 0.5 - np.arange(buffers))
    log_omega = np.minimum(log_decay / 2 + np.log(width / np.pi), 0.0)
    return np.concatenate([log_omega, log_decay])


def _parameters(point: Array) -> Buffers:
    omega, decay = np.split(np.exp(point), 2)
    return Buffers(omega, 1.0 - decay)


def _powers(theta: Array, num_steps: int) -> Array:
    """θ_i^{k-1} for k = 1, ..., n - 1."""
    return np.power(theta[:, None], np.arange(num_steps - 1)[None])


def _correlate(u: Array, s: Array) -> Array:
    """Σ_t u_t s_{t-m} for m = 0, ..., n - 1."""
    n = u.size
    length = 1 << (2 * n - 1).bit_length()
    spectrum = np.fft.rfft(u, length) * np.conj(np.fft.rfft(s, length))
    return np.fft.irfft(spectrum, length)[:n]
