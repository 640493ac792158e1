"""Banded factorisation: the numbers of the notes, and its refusals."""

import numpy as np
import pytest

from tests.noise.white import Replayed, run
from tf_dpadaptive.noise.banded import BandedMF


def rmse(mechanism, n):
    return np.sqrt(np.mean(mechanism.prefix_errors_squared(n)))


def test_rmse_of_the_notes():
    np.testing.assert_allclose(rmse(BandedMF(16), 64), 2.329086, rtol=1e-6)
    np.testing.assert_allclose(rmse(BandedMF(128), 2000), 4.242317, rtol=1e-6)


def test_independent_noise_of_the_same_error():
    # Prefix sums of independent noise: e_t = t + 1.
    independent = np.sqrt(np.mean(np.arange(1, 2001)))
    ratio = rmse(BandedMF(128), 2000) / independent
    np.testing.assert_allclose(ratio, 0.13412, atol=5e-6)


def test_row_norms_of_the_notes():
    rows = BandedMF(128).row_norms_squared(2000)
    np.testing.assert_allclose(
        rows[[0, 1, 99, 1899, 1949, 1999]],
        [4.117, 5.238, 5.346, 5.038, 4.088, 1.306],
        atol=5e-4,
    )


def test_columns_have_norm_one_to_the_last():
    c = BandedMF(7).strategy_matrix(30)
    np.testing.assert_allclose(np.sum(c**2, axis=0), 1.0)


def test_what_is_fed_back_is_not_normalised():
    # Feeding the emitted, normalised noise back is too little noise: the last
    # columns, where the norms differ, show it.
    n, mechanism = 8, BandedMF(4)
    white = Replayed([()], n)
    (noise,) = run(mechanism.stream(white, [()], num_steps=n), range(n))
    c = mechanism.strategy_matrix(n)
    np.testing.assert_allclose(c @ noise, white.z[0][0], atol=1e-5)


@pytest.mark.parametrize(("b", "k", "root"), [(5, 1, 1), (5, 3, 3), (9, 9, 3)])
def test_sensitivity_is_the_root_of_the_participations(b, k, root):
    np.testing.assert_allclose(BandedMF(5).sensitivity(25, b, k), np.sqrt(root))


def test_more_bands_than_the_separation_are_refused():
    with pytest.raises(ValueError, match="bands=6, min_separation=5"):
        BandedMF(6).sensitivity(25, 5, 2)
    assert BandedMF(6).sensitivity(25, 5, 1) == 1.0


def test_the_general_optimum_is_for_short_runs():
    with pytest.raises(ValueError, match="num_steps=1001"):
        BandedMF(4, toeplitz=False).strategy_matrix(1001)
    general = rmse(BandedMF(16, toeplitz=False), 64)
    assert 2.0998 < general < 0.99 * rmse(BandedMF(16), 64)
