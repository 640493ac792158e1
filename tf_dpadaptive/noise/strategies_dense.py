r"""Strategies that are not Toeplitz, by their Gram matrix X = CᵀC.

The squared error of the prefix sums, tr(A X⁻¹ Aᵀ), is convex in X, and the
sensitivity of a participation pattern is linear in it.

* One participation, diag(X) ≤ 1: the fixed point v = diag((D M D)^½) with
  M = AᵀA, D = diag(√v), and X = D⁻¹ (D M D)^½ D⁻¹. For prefix sums M⁻¹ is
  tridiagonal, so that a round costs an eigendecomposition of that.
* Several: X[p, q] = 0 where one example may take part in both p and q, and
  diag(X) = 1. Its columns are then orthogonal, so that k participations have
  sensitivity √k whatever the signs. L-BFGS on the other entries.

References: Denisov et al., "Improved differential privacy for SGD via optimal
private linear operators on adaptive streams", 2022, arXiv 2202.08312 (fixed
point); Choquette-Choo et al., 2022, arXiv 2211.06530 (several epochs) and 2023,
arXiv 2306.08153 (banded).
"""

import functools
import math
import time
from collections.abc import Callable, Mapping

import numpy as np
from absl import logging
from numpy.typing import NDArray

from tf_dpadaptive.noise import strategies as toeplitz
from tf_dpadaptive.noise import strategies_banded, strategies_cache
from tf_dpadaptive.noise.strategies_minimise import minimise

Array = NDArray[np.float64]


def factor(gram: Array) -> Array:
    """Returns the lower-triangular C with CᵀC = X; bands of X stay bands."""
    from scipy.linalg import cholesky

    return cholesky(gram[::-1, ::-1], lower=True)[::-1, ::-1].T


def log_prefix_error(strategy: Array) -> float:
    """Returns log(sens² · mean(e)) of any lower-triangular C."""
    from scipy.linalg import solve_triangular

    n = strategy.shape[0]
    noising = solve_triangular(strategy, np.eye(n), lower=True)
    errors = np.sum(np.square(np.cumsum(noising, axis=0)), axis=1)
    squares = np.sum(np.square(strategy), axis=0)
    return float(np.log(np.max(squares) * np.mean(errors)))


@functools.lru_cache(maxsize=4)
def single_epoch(num_steps: int) -> Array:
    """Returns the best C for one participation, columns of norm 1, (n, n)."""
    return _strategy(
        "dense", num_steps, {}, lambda: factor(_fixed_point(num_steps))
    )


@functools.lru_cache(maxsize=4)
def multi_epoch(num_steps: int, epochs: int) -> Array:
    """Returns the best C with columns ⌈n / epochs⌉ apart orthogonal, (n, n).

    Args:
        num_steps: n.
        epochs: Number of participations of an example, >= 2.
    """
    period = math.ceil(num_steps / epochs)
    lag = np.subtract.outer(np.arange(num_steps), np.arange(num_steps))
    return _strategy(
        "dense_epochs",
        num_steps,
        {"epochs": epochs},
        lambda: _optimise(
            f"DenseMF(epochs={epochs}) for {num_steps} steps",
            lag % period != 0,
            _banded_start(num_steps, period),
        ),
    )


@functools.lru_cache(maxsize=16)
def banded(num_steps: int, bands: int) -> Array:
    """Returns the best C with `bands` diagonals, columns of norm 1, (n, n).

    Args:
        num_steps: n.
        bands: Number of diagonals, >= 1.
    """
    lag = np.subtract.outer(np.arange(num_steps), np.arange(num_steps))
    return _strategy(
        "banded_general",
        num_steps,
        {"bands": bands},
        lambda: _optimise(
            f"BandedMF({bands}, toeplitz=False) for {num_steps} steps",
            np.abs(lag) < bands,
            _banded_start(num_steps, bands),
        ),
    )


def _strategy(
    name: str,
    num_steps: int,
    parameters: Mapping[str, int],
    compute: Callable[[], Array],
) -> Array:
    def loss(arrays: Mapping[str, Array]) -> float:
        c = strategies_cache.shaped(arrays, "c", num_steps, num_steps)
        if np.any(np.triu(c, 1)) or np.any(np.diag(c) <= 0):
            raise ValueError("`c` must be lower-triangular and invertible")
        if not np.allclose(np.sum(np.square(c), axis=0), 1.0, atol=1e-9):
            raise ValueError("`c` must have columns of norm 1")
        return log_prefix_error(c)

    def unit() -> dict[str, Array]:
        c = np.tril(compute())
        return {"c": c / np.linalg.norm(c, axis=0)}

    found = strategies_cache.cached(
        name, {"num_steps": num_steps, **parameters}, unit, loss
    )
    return strategies_cache.frozen(found["c"])


def _fixed_point(num_steps: int) -> Array:
    """X of the single-epoch optimum, to a relative error of about 1e-9."""
    from scipy.linalg import eigh_tridiagonal

    n = num_steps
    began = last = time.monotonic()
    v = np.sqrt(np.arange(n, 0.0, -1.0))
    change = 1.0
    rounds = 0
    while True:
        # (D M D)⁻¹ is tridiagonal: A⁻¹A⁻ᵀ has (1, 2, 2, ...) and -1 beside.
        diagonal = np.concatenate([[1.0], np.full(n - 1, 2.0)]) / v
        beside = -1.0 / np.sqrt(v[1:] * v[:-1])
        values, vectors = eigh_tridiagonal(diagonal, beside)
        ratio = np.square(vectors) @ values**-0.5 / v
        change = float(np.max(np.abs(ratio - 1.0)))
        rounds += 1
        if change < 1e-4:
            break
        v = v * ratio**2  # twice the step: half the rounds
        if time.monotonic() - last > 2.0:
            last = time.monotonic()
            logging.info(
                "Optimising DenseMF for %d steps: round %d, change %.1e",
                n,
                rounds,
                change,
            )
    logging.info(
        "Optimised DenseMF for %d steps: %d rounds, %.1f s",
        n,
        rounds,
        time.monotonic() - began,
    )
    root = np.sqrt(v)
    return (vectors * values**-0.5) @ vectors.T / np.outer(root, root)


def _banded_start(num_steps: int, bands: int) -> Array:
    c = toeplitz.matrix(strategies_banded.banded(num_steps, bands), num_steps)
    c /= np.linalg.norm(c, axis=0)
    return c.T @ c


def _optimise(name: str, free: NDArray[np.bool_], start: Array) -> Array:
    """C of least tr(A X⁻¹ Aᵀ), diag(X) = 1, X = 0 where not `free`."""
    from scipy.linalg import LinAlgError, lapack

    n = start.shape[0]
    rows, columns = np.nonzero(np.tril(free, -1))

    def gram(point: Array) -> Array:
        x = np.eye(n)
        x[rows, columns] = x[columns, rows] = point
        return x

    def objective(point: Array) -> tuple[float, Array]:
        root, failed = lapack.dpotrf(gram(point), lower=1)
        if failed:  # outside the cone: the line search comes back
            return 1e3, np.zeros_like(point)
        half, _ = lapack.dpotri(root, lower=1)
        inverse = np.tril(half) + np.tril(half, -1).T
        w = np.cumsum(inverse, axis=1)  # X⁻¹ Aᵀ
        loss = np.sum(np.triu(w))
        slope = -2.0 * (w @ w.T)[rows, columns]
        return float(np.log(loss / n)), slope / loss

    try:
        return factor(gram(minimise(name, objective, start[rows, columns])))
    except LinAlgError as error:
        raise RuntimeError(f"The optimisation of {name} failed.") from error
