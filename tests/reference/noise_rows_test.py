"""Checks of r_t and C⁻¹z against the numbers of the reference notes."""

import numpy as np
import pytest

from tests.reference import noise_rows


def test_row_norms_of_the_bidiagonal_example():
    c = noise_rows.lambda_cgd(80, 0.5)
    np.testing.assert_allclose(
        noise_rows.noising_matrix(c)[2, :4], [0, -0.5, 1, 0], atol=1e-15
    )
    np.testing.assert_allclose(
        noise_rows.row_norms(c)[:3], [1, 1.25, 1.25], rtol=1e-12
    )
    unit = noise_rows.at_sensitivity_one(c)
    np.testing.assert_allclose(
        noise_rows.row_norms(unit)[:3], [4 / 3, 5 / 3, 5 / 3], rtol=1e-12
    )
    # The bare recurrence is too little noise by the largest column norm.
    np.testing.assert_allclose(
        np.sqrt(np.max(np.sum(c**2, axis=0))), 1.154700538, rtol=1e-9
    )


def test_a_short_run_has_a_smaller_column_norm():
    # n = 2, C = [[1, 0], [.5, 1]]: column norms √1.25 and 1.
    unit = noise_rows.at_sensitivity_one(noise_rows.lambda_cgd(2, 0.5))
    np.testing.assert_allclose(
        noise_rows.row_norms(unit), [1.25, 1.25 * 1.25], rtol=1e-12
    )


def test_prefix_errors_of_the_two_step_example():
    c = np.array([[1, 0], [0.5, 1]])
    errors = np.sum(
        (np.tril(np.ones((2, 2))) @ noise_rows.noising_matrix(c)) ** 2, axis=1
    )
    np.testing.assert_allclose(errors, [1, 1.25])


def test_square_root_numbers_of_the_notes():
    coefficients = np.cumprod(
        [1.0] + [(2 * k - 1) / (2 * k) for k in range(1, 8)]
    )
    lag = np.subtract.outer(np.arange(8), np.arange(8))
    c = np.where(lag >= 0, coefficients[np.maximum(lag, 0)], 0)
    inverse = noise_rows.noising_matrix(c)
    np.testing.assert_allclose(
        inverse[4, 4::-1], [1, -1 / 2, -1 / 8, -1 / 16, -5 / 128]
    )
    a = np.tril(np.ones((8, 8)))
    unit = noise_rows.noising_matrix(noise_rows.at_sensitivity_one(c))
    errors = np.sum((a @ unit) ** 2, axis=1)
    np.testing.assert_allclose(np.sqrt(np.max(errors)), 1.718379, atol=1e-6)
    np.testing.assert_allclose(np.sqrt(np.mean(errors)), 1.585857, atol=1e-6)


def test_rows_solve_the_triangular_system():
    rng = np.random.default_rng(0)
    c = np.tril(rng.standard_normal((6, 6))) + 3 * np.eye(6)
    z = rng.standard_normal((6, 2, 3))
    x = noise_rows.rows(c, z)
    np.testing.assert_allclose(np.tensordot(c, x, axes=1), z, atol=1e-12)


def test_replay_is_laid_out_by_step_stream_variable():
    c = noise_rows.lambda_cgd(5, 0.5)
    noise = noise_rows.replay(c, [(2, 3), ()], streams=2, seed=4)
    assert len(noise) == 5
    assert [v.shape for v in noise[0][1]] == [(2, 3), ()]
    assert not np.allclose(noise[0][0][0], noise[0][1][0])
    white = noise_rows.replay(np.eye(5), [(2, 3), ()], streams=2, seed=4)
    np.testing.assert_allclose(
        noise[3][1][0], white[3][1][0] - 0.5 * white[2][1][0], atol=1e-12
    )


def test_an_upper_triangle_is_refused():
    with pytest.raises(ValueError, match="lower-triangular"):
        noise_rows.noising_matrix(np.ones((2, 2)))


def test_sensitivity_is_the_largest_column_norm_and_not_a_row_norm():
    c = np.array([[3.0, 0, 0], [4.0, 1, 0], [0, 2.0, 9.0]])
    unit = noise_rows.at_sensitivity_one(c)
    np.testing.assert_allclose(
        np.sqrt(np.sum(unit**2, axis=0)), [5 / 9, np.sqrt(5) / 9, 1]
    )
    np.testing.assert_allclose(
        noise_rows.row_norms(unit)[0], 81 / 9, rtol=1e-12
    )
