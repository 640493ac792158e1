"""The square root of the prefix sum: the numbers of the notes."""

import numpy as np
import pytest

from tf_dpadaptive.noise.square_root import SquareRoot


@pytest.mark.parametrize(
    ("n", "scale", "largest", "mean"),
    [
        (2, 1.118034, 1.250000, 1.185854),
        (8, 1.310870, 1.718379, 1.585857),
        (100, 1.591022, 2.531352, 2.370658),
        (1024, 1.809020, 3.272554, 3.109790),
    ],
)
def test_numbers_of_the_notes(n, scale, largest, mean):
    mechanism = SquareRoot()
    errors = mechanism.prefix_errors_squared(n)
    np.testing.assert_allclose(mechanism.scale(n), scale, rtol=1e-6)
    np.testing.assert_allclose(np.sqrt(np.max(errors)), largest, rtol=1e-6)
    np.testing.assert_allclose(np.sqrt(np.mean(errors)), mean, rtol=1e-6)


@pytest.mark.parametrize(
    ("n", "b", "k", "expected"),
    [
        (2000, 830, 3, 3.511481),
        (100, 10, 10, 8.734082),
        (64, 16, 4, 3.960620),
    ],
)
def test_separated_sensitivity_of_the_notes(n, b, k, expected):
    mechanism = SquareRoot()
    np.testing.assert_allclose(
        mechanism.sensitivity(n, b, k) * mechanism.scale(n), expected, rtol=1e-6
    )
