"""The optimal buffered linear Toeplitz strategy, and its gradient."""

import numpy as np
import pytest

from tests.noise.numeric import slope
from tf_dpadaptive.noise import strategies, strategies_blt

TWO = strategies_blt.Buffers(np.array([0.02, 0.1]), np.array([0.99, 0.9]))


def test_coefficients_are_those_of_the_recurrence():
    n = 12
    c = np.array([1.0] + [0.02 * 0.99**k + 0.1 * 0.9**k for k in range(n - 1)])
    np.testing.assert_allclose(TWO.coefficients(n), c)
    state, x = np.zeros(2), []
    for z in np.eye(1, n)[0]:
        x.append(z - TWO.omega @ state)
        state = TWO.theta * state + x[-1]
    np.testing.assert_allclose(TWO.inverse_coefficients(n), x, atol=1e-14)
    np.testing.assert_allclose(strategies.inverse(c, n), x, atol=1e-14)


@pytest.mark.parametrize("epochs", [1, 3])
def test_loss_is_that_of_the_matrix(epochs):
    n, point = 12, np.log(np.array([0.02, 0.1, 0.01, 0.1]))

    def loss(x):
        return strategies_blt.log_error(x, n, epochs)[0]

    c = strategies.matrix(TWO.coefficients(n), n)
    errors = np.sum(np.cumsum(np.linalg.inv(c), axis=0) ** 2, axis=1)
    steps = list(range(0, n, -(-n // epochs)))
    moved = np.linalg.norm(np.sum(c[:, steps], axis=1))
    np.testing.assert_allclose(
        np.exp(loss(point) / 2), moved * np.sqrt(np.max(errors))
    )
    gradient = strategies_blt.log_error(point, n, epochs)[1]
    np.testing.assert_allclose(gradient, slope(loss, point), atol=1e-8)


def test_two_buffers_of_the_notes():
    n = 100_000
    blt = strategies_blt.optimal(n, 2, 1)
    np.testing.assert_allclose(
        blt.omega, [0.0122853238, 0.1878393665], rtol=1e-4
    )
    np.testing.assert_allclose(
        blt.theta, [0.9999528892, 0.9857068667], rtol=1e-6
    )
    point = np.log(np.concatenate([blt.omega, 1 - blt.theta]))
    loss = strategies_blt.log_error(point, n, 1)[0]
    np.testing.assert_allclose(np.exp(loss / 2), 5.296747, rtol=1e-6)
    np.testing.assert_allclose(
        np.linalg.norm(blt.coefficients(n)), 2.041, atol=5e-4
    )


def test_few_buffers_come_near_the_best_toeplitz_matrix():
    n = 64
    best = np.linalg.norm(strategies.square_root(n)) ** 2  # of max error
    losses = []
    for buffers in (1, 2, 3):
        blt = strategies_blt.optimal(n, buffers, 1)
        point = np.log(np.concatenate([blt.omega, 1 - blt.theta]))
        losses.append(np.exp(strategies_blt.log_error(point, n, 1)[0] / 2))
    assert losses == sorted(losses, reverse=True)
    assert losses[0] < 1.05 * best
    assert losses[2] < 1.001 * best


@pytest.mark.parametrize(("n", "buffers"), [(1, 1), (2, 3), (5, 4)])
def test_short_runs(n, buffers):
    blt = strategies_blt.optimal(n, buffers, 1)
    assert blt.coefficients(n).shape == (n,)
    assert np.all(np.diff(blt.coefficients(n)) <= 1e-12)


def test_several_epochs_are_another_optimum():
    once, often = (strategies_blt.optimal(64, 2, epochs) for epochs in (1, 4))

    def loss(blt):
        point = np.log(np.concatenate([blt.omega, 1 - blt.theta]))
        return strategies_blt.log_error(point, 64, 4)[0]

    assert loss(often) < loss(once) - 1e-3


@pytest.mark.parametrize("buffers", [6, 10, 20])
def test_many_buffers_are_as_exact_as_few(buffers):
    # As a quotient of polynomials 1/c was 1e-4 off at 8 buffers, and its
    # errors 2 % too small.
    n = 200
    blt = strategies_blt.optimal(n, buffers, 4)
    c, d = blt.coefficients(n), blt.inverse_coefficients(n)
    np.testing.assert_allclose(
        np.convolve(c, d)[:n], np.eye(1, n)[0], atol=1e-13
    )
    right = np.random.default_rng(0).standard_normal(n)
    np.testing.assert_allclose(
        np.convolve(c, blt.divide(right))[:n], right, atol=1e-12
    )
