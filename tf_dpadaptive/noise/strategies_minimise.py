"""L-BFGS with a line of progress in the log."""

import time
from collections.abc import Callable, Sequence

import numpy as np
from absl import logging
from numpy.typing import NDArray

Array = NDArray[np.float64]
Objective = Callable[[Array], tuple[float, Array]]


def minimise(
    name: str,
    objective: Objective,
    start: Array,
    bounds: Sequence[tuple[float, float]] | None = None,
    max_iterations: int = 5000,
) -> Array:
    """Returns the minimum that L-BFGS finds, telling the log about it.

    Args:
        name: What is optimised, for the log.
        objective: Value and gradient.
        start: Where to begin.
        bounds: Bounds of each coordinate.
        max_iterations: Most steps of L-BFGS.

    Raises:
        RuntimeError: if the result is worse than the start or not finite.
    """
    from scipy.optimize import minimize

    began = last = time.monotonic()
    count = 0

    def tell(point: Array) -> None:
        nonlocal last, count
        count += 1
        if time.monotonic() - last > 2.0:
            last = time.monotonic()
            logging.info(
                "Optimising %s: iteration %d, √loss %.6f, %.0f s",
                name,
                count,
                np.exp(objective(point)[0] / 2),
                last - began,
            )

    before = objective(start)[0]
    result = minimize(
        objective,
        start,
        jac=True,
        method="L-BFGS-B",
        bounds=bounds,
        callback=tell,
        options={
            "maxiter": max_iterations,
            "maxfun": 2 * max_iterations,
            "maxcor": 20,
            "ftol": 1e-12,
            "gtol": 1e-9,
        },
    )
    if not np.isfinite(result.fun) or result.fun > before:
        raise RuntimeError(
            f"The optimisation of {name} failed: {result.message}. Received "
            f"log loss {result.fun} after {before}. Try other parameters."
        )
    logging.info(
        "Optimised %s: √loss %.6f after %d iterations, %.1f s",
        name,
        np.exp(result.fun / 2),
        count,
        time.monotonic() - began,
    )
    return np.asarray(result.x, np.float64)
