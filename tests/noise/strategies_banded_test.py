"""The optima of banded C and banded C⁻¹, and their gradients."""

import numpy as np
import pytest

from tests.noise.numeric import slope
from tf_dpadaptive.noise import strategies, strategies_banded


def rmse(noising):
    errors = np.sum(np.cumsum(noising, axis=0) ** 2, axis=1)
    return np.sqrt(np.mean(errors))


def test_banded_loss_is_that_of_the_matrix():
    c = np.array([0.9, 0.4, 0.1])
    noising = np.linalg.inv(strategies.matrix(c, 7))
    loss, gradient = strategies_banded.log_banded_error(c, 7)
    np.testing.assert_allclose(
        np.exp(loss / 2), np.linalg.norm(c) * rmse(noising)
    )
    np.testing.assert_allclose(
        gradient,
        slope(lambda x: strategies_banded.log_banded_error(x, 7)[0], c),
        atol=1e-8,
    )


@pytest.mark.parametrize("epochs", [1, 2, 3])
@pytest.mark.parametrize("size", [1, 3, 8])
def test_banded_inverse_loss_is_that_of_the_matrix(size, epochs):
    n, point = 8, np.linspace(-1.0, 0.5, size)

    def loss(x):
        return strategies_banded.log_banded_inverse_error(x, n, epochs)[0]

    x = np.exp(point) / (1 + np.sum(np.exp(point)))
    d = np.concatenate([[1.0], -x])
    noising = strategies.matrix(d, n)
    c = np.linalg.inv(noising)
    steps = list(range(0, n, -(-n // epochs)))
    moved = np.linalg.norm(np.sum(c[:, steps], axis=1))
    np.testing.assert_allclose(np.exp(loss(point) / 2), moved * rmse(noising))
    gradient = strategies_banded.log_banded_inverse_error(point, n, epochs)[1]
    np.testing.assert_allclose(gradient, slope(loss, point), atol=1e-8)


@pytest.mark.parametrize(
    ("n", "bands", "expected"),
    [
        (16, 4, 1.937530),
        (64, 16, 2.350054),
        (1000, 10, 7.590657),
        (2000, 128, 4.253252),
    ],
)
def test_banded_of_the_notes(n, bands, expected):
    c = strategies_banded.banded(n, bands)
    np.testing.assert_allclose(
        np.exp(strategies_banded.log_banded_error(c, n)[0] / 2),
        expected,
        rtol=1e-6,
    )
    np.testing.assert_allclose(np.linalg.norm(c), 1.0)


def test_banded_coefficients_of_the_notes():
    np.testing.assert_allclose(
        strategies_banded.banded(16, 4),
        [0.794875, 0.438433, 0.329274, 0.259862],
        atol=1e-6,
    )


def test_more_bands_than_steps_are_as_many_as_steps():
    assert strategies_banded.banded(3, 9).shape == (3,)
    assert strategies_banded.banded_inverse(3, 9, 1).shape == (3,)
    np.testing.assert_array_equal(strategies_banded.banded(1, 4), [1.0])


def test_two_bands_of_the_inverse_are_the_best_lambda():
    n = 100
    grid = np.linspace(0.0, 0.999, 5000)
    squares = (1 - grid ** (2 * n)) / (1 - grid**2)
    errors = 1 + (1 - grid) ** 2 * (n - 1) / 2
    best = grid[np.argmin(squares * errors)]
    d = strategies_banded.banded_inverse(n, 2, 1)
    np.testing.assert_allclose(d, [1.0, -best], atol=1e-3)


def test_more_bands_of_the_inverse_are_better():
    losses = []
    for bands in (2, 3, 4, 8, 16):
        d = strategies_banded.banded_inverse(64, bands, 1)
        c = strategies.inverse(d, 64)
        losses.append(np.linalg.norm(c) * rmse(strategies.matrix(d, 64)))
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] > 2.0998  # the dense optimum


def test_banded_inverse_keeps_its_strategy_positive():
    for bands in (2, 5, 30):
        for epochs in (1, 5):
            d = strategies_banded.banded_inverse(300, bands, epochs)
            assert np.sum(np.abs(d[1:])) < 1.0
            assert np.all(strategies.inverse(d, 300) >= 0)
