"""δ and ε of one Gaussian mechanism, exactly."""

import math

#: Between these distances of the means, over σ, the exact formula is solved.
_SMALLEST_DISTANCE, _LARGEST_DISTANCE = 1e-100, 1e6


def gaussian_delta(sigma: float, epsilon: float) -> float:
    """Returns the δ of one Gaussian of multiplier `sigma` at ε."""
    from scipy import special

    half = 1 / (2 * sigma)
    if epsilon == 0:  # no difference of nearly equal numbers
        return float(special.erf(half / math.sqrt(2)))
    first = special.log_ndtr(half - epsilon * sigma)
    second = epsilon + special.log_ndtr(-half - epsilon * sigma)
    # Φ(..) - e^ε Φ(..), without the overflow of e^ε.
    return float(math.exp(first) * -math.expm1(min(0.0, second - first)))


def gaussian_epsilon(distance: float, delta: float) -> float:
    """Returns the ε of one Gaussian at δ; inf where it is beyond float64.

    Args:
        distance: Of the means, over σ, >= 0.
        delta: In (0, 1).
    """
    if distance > _LARGEST_DISTANCE:
        return _of_far_means(distance, delta)
    sigma = 1 / max(distance, _SMALLEST_DISTANCE)
    if gaussian_delta(sigma, 0.0) <= delta:
        return 0.0
    low, high = 0.0, 1.0
    while gaussian_delta(sigma, high) > delta:
        low, high = high, 2 * high
    # Bisection keeps δ(high) <= delta, so the answer errs upwards only.
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        if gaussian_delta(sigma, middle) > delta:
            low = middle
        else:
            high = middle
    return high


def _of_far_means(distance: float, delta: float) -> float:
    """Without the term e^ε Φ(..), which can only lower δ: an upper bound."""
    from scipy import special

    quantile = max(0.0, -float(special.ndtri(delta)))
    # Rounding is below 1e-15; inf where ε is beyond float64.
    return (distance * distance / 2 + distance * quantile) * (1 + 1e-14)
