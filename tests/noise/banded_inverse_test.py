"""λ-CGD and its kin."""

import numpy as np

from tests.noise.white import Replayed, run
from tf_dpadaptive.noise.banded_inverse import BandedInverse
from tf_dpadaptive.noise.sensitivity import separated_bound


def test_two_bands_are_lambda_cgd():
    mechanism, n = BandedInverse(2), 50
    decay = -mechanism.inverse_coefficients(n)[1]
    assert 0.5 < decay < 1.0
    c = mechanism.coefficients(n)
    np.testing.assert_allclose(c, decay ** np.arange(n))
    np.testing.assert_allclose(
        mechanism.scale(n), np.sqrt((1 - decay ** (2 * n)) / (1 - decay**2))
    )
    rows = mechanism.row_norms_squared(n)
    np.testing.assert_allclose(rows[0], mechanism.scale(n) ** 2)
    np.testing.assert_allclose(rows[1:], rows[0] * (1 + decay**2))


def test_the_scale_of_the_notes():
    # (1, -1/2), long n: the bare recurrence is too small by 1.155.
    n, half = 60, 0.5
    c = half ** np.arange(n)
    np.testing.assert_allclose(np.linalg.norm(c), 1.155, atol=5e-4)


def test_noise_is_scaled_to_sensitivity_one():
    mechanism, n = BandedInverse(2), 20
    white = Replayed([(3,)], n)
    (noise,) = run(mechanism.stream(white, [(3,)], num_steps=n), range(n))
    z, d = white.z[0][0], mechanism.inverse_coefficients(n)
    scale = mechanism.scale(n)
    assert scale > 1.3
    np.testing.assert_allclose(noise[0], scale * z[0], rtol=1e-5)
    np.testing.assert_allclose(
        noise[1:], scale * (z[1:] + d[1] * z[:-1]), atol=1e-5
    )


def test_bands_of_c_are_not_those_of_its_inverse():
    # Amplified accounting asks for the bands of C, and C is full.
    mechanism = BandedInverse(bands=3)
    assert mechanism.bands is None
    assert mechanism.inverse_bands == 3
    assert mechanism.get_config()["bands"] == 3


def test_sensitivity_bounds_coefficients_that_rise():
    n = 60
    mechanism = BandedInverse(4)
    c = mechanism.coefficients(n)
    assert np.any(np.diff(c) > 0)
    matrix = mechanism.strategy_matrix(n)
    for b, k in ((3, 5), (10, 3), (25, 9)):
        bound = mechanism.sensitivity(n, b, k)
        steps = np.arange(0, n, b)[:k]
        aligned = np.linalg.norm(np.sum(matrix[:, steps], axis=1))
        assert aligned <= bound <= 1.2 * aligned
        # No worse than the bound for any matrix, give or take.
        other = separated_bound(matrix.T @ matrix, b, k)
        assert bound <= 1.2 * other


def test_epochs_are_what_it_is_optimised_for():
    n = 200

    def error(mechanism):
        squares = mechanism.prefix_errors_squared(n)
        return mechanism.sensitivity(n, 20, 10) * np.sqrt(np.mean(squares))

    assert error(BandedInverse(2, epochs=10)) < error(BandedInverse(2))
