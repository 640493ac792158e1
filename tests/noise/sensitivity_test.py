"""Sensitivities against brute force over all participation patterns."""

import numpy as np
import pytest

from tests.noise.participation import aligned, patterns, signed
from tf_dpadaptive.noise import sensitivity
from tf_dpadaptive.noise import strategies as toeplitz


def lower(coefficients, n):
    lag = np.subtract.outer(np.arange(n), np.arange(n))
    padded = np.zeros(n)
    padded[: len(coefficients)] = coefficients
    return np.where(lag >= 0, padded[np.maximum(lag, 0)], 0.0)


SEPARATED = [
    (n, b, k)
    for n in (1, 2, 5, 8, 12)
    for b in (1, 2, 3, 5, 12)
    for k in (1, 2, 3, 12)
]


@pytest.mark.parametrize(("n", "b", "k"), SEPARATED)
def test_participations_are_those_of_the_longest_pattern(n, b, k):
    longest = max(len(steps) for steps in patterns(n, b, k))
    assert sensitivity.participations(n, b, k) == longest


@pytest.mark.parametrize(("n", "b", "k"), SEPARATED)
def test_largest_separated_sum_is_exact(n, b, k):
    weights = np.random.default_rng(n).random(n)
    best = max(np.sum(weights[steps]) for steps in patterns(n, b, k))
    np.testing.assert_allclose(
        sensitivity.largest_separated_sum(weights, b, k), best, rtol=1e-12
    )


@pytest.mark.parametrize(("n", "b", "k"), SEPARATED)
def test_banded_is_exact_with_signs(n, b, k):
    rng = np.random.default_rng(0)
    c = rng.standard_normal((n, n))
    lag = np.subtract.outer(np.arange(n), np.arange(n))
    c = np.where((lag >= 0) & (lag < b), c, 0.0)
    exact = sensitivity.banded(c, b, k)
    np.testing.assert_allclose(
        exact,
        max(np.sqrt(np.sum(c[:, steps] ** 2)) for steps in patterns(n, b, k)),
        rtol=1e-12,
    )
    if n <= 5:
        worst = max(signed(c, steps) for steps in patterns(n, b, k))
        np.testing.assert_allclose(exact, worst, rtol=1e-12)


def test_banded_of_the_notes():
    c = np.diag([0.0, 3, 0, 1, 2])
    np.testing.assert_allclose(sensitivity.banded(c, 2, 5), np.sqrt(13))
    assert sensitivity.banded(c, 2, 1) == 3.0


def test_banded_refuses_more_bands_than_the_separation():
    c = lower([1.0, 0.5, 0.25], 6)
    with pytest.raises(ValueError, match=r"min_separation=2, bands=3"):
        sensitivity.banded(c, 2, 2)
    # One participation needs no separation.
    np.testing.assert_allclose(
        sensitivity.banded(c, 2, 1), np.sqrt(1 + 0.25 + 0.0625)
    )
    # And the rule would have been wrong: the columns overlap.
    assert aligned(c, 2, 3) > 1.02 * np.sqrt(3) * sensitivity.single(c)


def test_six_bands_two_steps_apart_of_the_notes():
    c = lower(toeplitz.square_root(6), 6)
    c = c / np.linalg.norm(c, axis=0)
    np.testing.assert_allclose(aligned(c, 2, 3), 2.291, atol=5e-4)
    np.testing.assert_allclose(
        np.sqrt(3) * sensitivity.single(c), 1.732, atol=5e-4
    )
    with pytest.raises(ValueError, match="bands=6"):
        sensitivity.banded(c, 2, 3)


def test_banded_refuses_an_upper_triangle():
    with pytest.raises(ValueError, match="bands"):
        sensitivity.banded(np.triu(np.ones((4, 4))), 2, 2)


@pytest.mark.parametrize(("n", "b", "k"), SEPARATED)
def test_toeplitz_is_exact(n, b, k):
    for seed in range(3):
        c = np.sort(np.random.default_rng(seed).random(n))[::-1]
        np.testing.assert_allclose(
            sensitivity.toeplitz(c, n, b, k),
            aligned(lower(c, n), b, k),
            rtol=1e-12,
        )


def test_toeplitz_with_fewer_coefficients_than_steps():
    c = np.array([1.0, 0.5])
    np.testing.assert_allclose(
        sensitivity.toeplitz(c, 7, 2, 3), aligned(lower(c, 7), 2, 3)
    )


@pytest.mark.parametrize("c", [[1.0, -0.1], [0.5, 1.0], [1.0, 0.2, 0.3]])
def test_toeplitz_refuses_other_coefficients(c):
    with pytest.raises(ValueError, match="not increasing"):
        sensitivity.toeplitz(np.array(c), 5, 1, 2)


@pytest.mark.parametrize(("n", "b", "k"), SEPARATED)
def test_separated_bound_holds_for_any_matrix(n, b, k):
    c = np.random.default_rng(n).standard_normal((n, n))
    bound = sensitivity.separated_bound(c.T @ c, b, k)
    worst = max(
        np.sqrt(np.sum(np.abs((c.T @ c)[np.ix_(s, s)])))
        for s in patterns(n, b, k)
    )
    assert bound >= worst * (1 - 1e-12)
    # Not exact, but near it: on these matrices within a quarter.
    assert bound <= 1.25 * worst


@pytest.mark.parametrize(("n", "b", "k"), [(8, 1, 8), (8, 2, 3), (9, 4, 3)])
def test_separated_bound_is_exact_for_orthogonal_columns(n, b, k):
    c = np.diag(np.random.default_rng(0).random(n))
    np.testing.assert_allclose(
        sensitivity.separated_bound(c.T @ c, b, k), sensitivity.banded(c, b, k)
    )


@pytest.mark.parametrize(("n", "b", "k"), SEPARATED)
def test_fixed_epoch_bound(n, b, k):
    c = np.random.default_rng(n).standard_normal((n, n))
    sets = [list(range(j, n, b))[:k] for j in range(n)]
    bound = sensitivity.fixed_epoch_bound(c.T @ c, b, k)
    assert bound >= max(signed(c, s) for s in sets) * (1 - 1e-12)
    assert bound <= sensitivity.separated_bound(c.T @ c, b, k) * (1 + 1e-12)
    c = np.abs(c)
    np.testing.assert_allclose(
        sensitivity.fixed_epoch_bound(c.T @ c, b, k),
        max(np.linalg.norm(np.sum(c[:, s], axis=1)) for s in sets),
        rtol=1e-12,
    )


@pytest.mark.parametrize(
    ("arguments", "name"),
    [((0, 1, 1), "num_steps"), ((4, 0, 1), "min_sep"), ((4, 1, 0), "max_part")],
)
def test_arguments_below_one_are_refused(arguments, name):
    with pytest.raises(ValueError, match=name):
        sensitivity.participations(*arguments)
