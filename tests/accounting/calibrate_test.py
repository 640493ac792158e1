"""The search for the smallest noise that keeps a promise."""

import math

import pytest

from tf_dpadaptive.accounting.calibrate import smallest_noise_multiplier


@pytest.mark.parametrize("target", [1e-3, 0.5, 3.0, 100.0])
@pytest.mark.parametrize(
    "epsilon_of",
    [
        lambda s: 1 / s,
        lambda s: 3 / s + 0.5 / s**2,
        lambda s: 5 / s**0.3,
        lambda s: math.inf if s < 0.01 else 1 / s,
        # A staircase, as rounding makes it: it must end on the safe side.
        lambda s: math.ceil(1e4 / s) / 1e4,
    ],
)
def test_ends_below_the_target_and_close(epsilon_of, target):
    if epsilon_of(1.0) == 5:
        target = max(target, 0.5)  # no σ below 1e6 keeps less
    sigma = smallest_noise_multiplier(epsilon_of, target)
    assert 0.99 * target <= epsilon_of(sigma) <= target


def test_takes_few_questions():
    asked = []

    def epsilon_of(sigma):
        asked.append(sigma)
        return 2.2 / sigma + 0.4 / sigma**2

    smallest_noise_multiplier(epsilon_of, 3.0)
    assert len(set(asked)) <= 10


def test_a_promise_that_no_noise_keeps_is_refused():
    with pytest.raises(ValueError, match="epsilon=1"):
        smallest_noise_multiplier(lambda s: 2.0, 1.0)


def test_is_tidy_where_that_is_safe():
    assert smallest_noise_multiplier(lambda s: 1 / s, 3.0) == pytest.approx(
        1 / 3, rel=1e-3
    )
    digits = repr(smallest_noise_multiplier(lambda s: 1 / s, 3.0))
    assert len(digits) <= len("0.33345")
