"""The smallest noise multiplier that keeps a promise."""

import math
from collections.abc import Callable

_TOLERANCE = 1e-3
_MOST_TRIES = 200


def smallest_noise_multiplier(
    epsilon_of: Callable[[float], float], target: float
) -> float:
    """Returns σ with target/1.01 <= ε(σ) <= target.

    Args:
        epsilon_of: ε as a function of σ > 0, decreasing; inf is allowed.
        target: The ε to keep, > 0.

    Raises:
        ValueError: if no σ up to 1e6 keeps it.
    """
    low, high = _bracket(epsilon_of, target)
    # Bisection on log σ, sped up by a secant in log-log, where ε is nearly a
    # straight line. `high` always keeps the promise, whatever the rounding.
    epsilon_low, epsilon_high = epsilon_of(low), epsilon_of(high)
    for attempt in range(_MOST_TRIES):
        if epsilon_high >= target * (1 - _TOLERANCE) or high / low < 1 + 1e-9:
            break
        middle = math.sqrt(low * high)
        if attempt % 3 and math.isfinite(epsilon_low) and epsilon_high > 0:
            middle = _secant(low, high, epsilon_low, epsilon_high, target)
        epsilon_middle = epsilon_of(middle)
        if epsilon_middle > target:
            low, epsilon_low = middle, epsilon_middle
        else:
            high, epsilon_high = middle, epsilon_middle
    return _rounded_up(high, epsilon_of, target)


def _bracket(
    epsilon_of: Callable[[float], float], target: float
) -> tuple[float, float]:
    """σ below and above the answer, a factor of 2 apart."""
    sigma = 1.0
    while epsilon_of(sigma) > target:
        sigma *= 2
        if sigma > 1e6:
            raise ValueError(
                f"No noise_multiplier up to 1e6 keeps epsilon={target!r}."
            )
    while epsilon_of(sigma / 2) <= target:
        sigma /= 2
        if sigma < 1e-6:
            return sigma / 2, sigma
    return sigma / 2, sigma


def _secant(
    low: float,
    high: float,
    epsilon_low: float,
    epsilon_high: float,
    target: float,
) -> float:
    """Where the line in log-log meets a hair below the target."""
    aim = math.log(target * (1 - _TOLERANCE / 2))
    above = math.log(epsilon_low) - aim
    below = aim - math.log(epsilon_high)
    share = min(max(above / (above + below), 0.01), 0.99)
    return low * (high / low) ** share


def _rounded_up(
    sigma: float, epsilon_of: Callable[[float], float], target: float
) -> float:
    """σ with five significant digits, where that keeps the promise."""
    unit = 10.0 ** (math.floor(math.log10(sigma)) - 4)
    tidy = float(f"{math.ceil(sigma / unit) * unit:.5g}")
    if tidy >= sigma and epsilon_of(tidy) <= target:
        return tidy
    return sigma
