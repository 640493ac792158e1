"""Optima among all lower-triangular and all banded matrices."""

import numpy as np
import pytest

from tf_dpadaptive.noise import (
    sensitivity,
    strategies,
    strategies_banded,
    strategies_dense,
)


def root_mean_loss(c):
    return np.exp(strategies_dense.log_prefix_error(c) / 2)


def normalised(n, bands):
    c = strategies.matrix(strategies_banded.banded(n, bands), n)
    return c / np.linalg.norm(c, axis=0)


@pytest.mark.parametrize(
    ("n", "expected"),
    [(2, 1.144123), (8, 1.494414), (64, 2.099856), (256, 2.524414)],
)
def test_single_epoch_of_the_notes(n, expected):
    c = strategies_dense.single_epoch(n)
    np.testing.assert_allclose(root_mean_loss(c), expected, rtol=1e-6)
    np.testing.assert_allclose(np.sum(c**2, axis=0), 1.0)
    np.testing.assert_array_equal(np.triu(c, 1), 0.0)


def test_single_epoch_is_an_optimum():
    c = strategies_dense.single_epoch(8)
    rng = np.random.default_rng(0)
    for _ in range(20):
        other = c + 0.02 * np.tril(rng.standard_normal((8, 8)))
        assert root_mean_loss(other) > root_mean_loss(c)


def test_one_step():
    np.testing.assert_allclose(strategies_dense.single_epoch(1), [[1.0]])


def test_column_normalised_banded_of_the_notes():
    np.testing.assert_allclose(
        root_mean_loss(normalised(64, 16)), 2.329086, rtol=1e-6
    )
    np.testing.assert_allclose(
        root_mean_loss(normalised(2000, 128)), 4.242317, rtol=1e-6
    )


@pytest.mark.parametrize(("n", "bands"), [(16, 4), (64, 16)])
def test_general_banded_is_a_little_better_than_toeplitz(n, bands):
    c = strategies_dense.banded(n, bands)
    lag = np.subtract.outer(np.arange(n), np.arange(n))
    np.testing.assert_allclose(c[lag >= bands], 0.0, atol=1e-12)
    np.testing.assert_allclose(np.sum(c**2, axis=0), 1.0)
    toeplitz = root_mean_loss(normalised(n, bands))
    assert 0.95 * toeplitz < root_mean_loss(c) < 0.99 * toeplitz


def test_all_bands_are_the_dense_optimum():
    np.testing.assert_allclose(
        root_mean_loss(strategies_dense.banded(24, 24)),
        root_mean_loss(strategies_dense.single_epoch(24)),
        rtol=1e-6,
    )


@pytest.mark.slow
def test_toeplitz_is_within_half_a_percent_from_1000_steps_on():
    general = root_mean_loss(strategies_dense.banded(1000, 10))
    toeplitz = root_mean_loss(normalised(1000, 10))
    assert general < toeplitz < 1.005 * general


def test_several_epochs_have_orthogonal_columns_where_they_meet():
    n, epochs = 16, 4
    c = strategies_dense.multi_epoch(n, epochs)
    gram = c.T @ c
    np.testing.assert_allclose(
        sensitivity.fixed_epoch_bound(gram, 4, 4), 2.0, rtol=1e-9
    )
    # Banded with as many bands as the epoch has steps is one of these.
    assert root_mean_loss(c) < root_mean_loss(strategies_dense.banded(n, 4))
    assert root_mean_loss(c) > root_mean_loss(strategies_dense.single_epoch(n))


def test_factor_keeps_bands():
    c = normalised(10, 3)
    np.testing.assert_allclose(strategies_dense.factor(c.T @ c), c, atol=1e-12)
