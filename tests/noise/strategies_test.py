"""Toeplitz algebra against explicit matrices."""

import numpy as np
import pytest

from tf_dpadaptive.noise import strategies

N = 9


def prefix_sum(n):
    return np.tril(np.ones((n, n)))


def test_square_root_squared_is_the_prefix_sum():
    c = strategies.matrix(strategies.square_root(N), N)
    np.testing.assert_allclose(c @ c, prefix_sum(N), atol=1e-14)


def test_square_root_inverse_of_the_notes():
    np.testing.assert_allclose(
        strategies.square_root_inverse(5),
        [1, -1 / 2, -1 / 8, -1 / 16, -5 / 128],
    )


def test_one_step():
    np.testing.assert_array_equal(strategies.square_root(1), [1.0])
    np.testing.assert_array_equal(strategies.square_root_inverse(1), [1.0])


@pytest.mark.parametrize("count", [1, 3, N])
def test_inverse_and_solve_are_those_of_the_matrix(count):
    rng = np.random.default_rng(count)
    c = np.concatenate([[2.0], rng.standard_normal(count - 1) / 4])
    matrix = strategies.matrix(c, N)
    inverse = strategies.matrix(strategies.inverse(c, N), N)
    np.testing.assert_allclose(matrix @ inverse, np.eye(N), atol=1e-12)
    right = rng.standard_normal(N)
    np.testing.assert_allclose(
        matrix @ strategies.solve(c, right), right, atol=1e-12
    )


def test_a_matrix_takes_as_many_coefficients_as_it_has_rows():
    np.testing.assert_array_equal(
        strategies.matrix(np.array([1.0, 2.0, 3.0]), 2), [[1, 0], [2, 1]]
    )


@pytest.mark.parametrize(("separation", "times"), [(3, 2), (4, 9), (1, 3)])
def test_repeated_is_a_sum_of_shifts(separation, times):
    values = np.random.default_rng(0).standard_normal(N)
    comb = np.zeros(N)
    comb[: separation * times : separation] = 1.0
    matrix = strategies.matrix(comb, N)
    np.testing.assert_allclose(
        strategies.repeated(values, separation, times), matrix @ values
    )
    np.testing.assert_allclose(
        strategies.repeated(values, separation, times, transpose=True),
        matrix.T @ values,
    )
