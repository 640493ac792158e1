"""Checks of the reference clipping against hand computations."""

import numpy as np
import pytest

from tests.reference import clip

ALL = np.ones


def test_rows_are_clipped_to_the_norm_over_all_variables_together():
    shapes = [(2,), (), (1, 1)]
    g = clip.flatten_examples(
        [
            np.array([[3.0, 0.0], [0.3, 0.0]]),
            np.array([4.0, 0.4]),
            np.zeros((2, 1, 1)),
        ],
        shapes,
    )
    out = clip.clipped(g, ALL(2, bool), 1.0)
    np.testing.assert_allclose(
        out, [[0.6, 0, 0.8, 0], [0.3, 0, 0.4, 0]], rtol=1e-15
    )


def test_split_undoes_flatten_with_scalars_and_empty_variables():
    arrays = [np.arange(6.0).reshape(1, 2, 3), np.float64(7), np.zeros((0, 2))]
    back = clip.split(clip.flatten(arrays), [(1, 2, 3), (), (0, 2)])
    for a, b in zip(arrays, back, strict=True):
        np.testing.assert_array_equal(a, b)


def test_the_divisor_is_b_and_not_the_number_that_arrived():
    g = np.array([[1.0], [1.0], [1.0]])
    mask = np.array([True, False, True])
    assert clip.clipped_mean(g, mask, 9.0, 8) == 2 / 8


def test_an_empty_batch_gives_zero():
    g = clip.flatten_examples([np.zeros((0, 2, 3))], [(2, 3)])
    mean = clip.clipped_mean(g, np.zeros(0, bool), 1.0, 4, center=np.ones(6))
    np.testing.assert_array_equal(mean, np.zeros(6))


def test_a_masked_row_gives_zero_and_not_the_clipped_centre():
    m, b = np.array([3.0, 4.0]), np.array([1.0, 1.0])
    g = np.array([[3.0, 4.0], [0.0, 0.0]])
    both = clip.clipped(g, np.array([True, True]), 1.0, center=m, denominator=b)
    np.testing.assert_allclose(both, [[0, 0], [-0.6, -0.8]])
    one = clip.clipped(g, np.array([True, False]), 1.0, center=m, denominator=b)
    np.testing.assert_array_equal(one, [[0, 0], [0, 0]])


def test_clipping_acts_in_the_geometry():
    # w = (2 - 1)/0.1, (1 - 1)/5: of length 10.
    out = clip.clipped(
        np.array([[2.0, 1.0]]),
        ALL(1, bool),
        1.0,
        center=np.array([1.0, 1.0]),
        denominator=np.array([0.1, 5.0]),
    )
    np.testing.assert_allclose(out, [[1.0, 0.0]])


@pytest.mark.parametrize(
    ("value", "denominator", "kept"),
    [
        (1e30, 1.0, False),  # finite, but its square is not
        (1e19, 1.0, True),
        (2e19, 1.0, False),
        (1e32, 1e-8, False),  # finite in float64, inf in float32
        (1e32, 1e20, True),  # only the transformed gradient counts
        (np.inf, 1.0, False),
        (-np.inf, 1e-8, False),
        (np.nan, 1.0, False),
        (1e39, 1e30, False),  # inf as a float32 gradient
        (0.0, 1e-8, True),
    ],
)
def test_the_finite_rule_is_that_of_float32(value, denominator, kept):
    g = np.array([[value, 0.1], [0.0, 0.1]])
    kwargs = {"denominator": np.full(2, denominator)}
    assert list(clip.contributes(g, **kwargs)) == [kept, True]
    out = clip.clipped(g, ALL(2, bool), 1.0, **kwargs)
    assert np.isfinite(out).all()
    assert np.any(out[0]) == kept
    assert np.any(out[1])


def test_norms_stay_within_the_clip_norm():
    rng = np.random.default_rng(0)
    g = rng.standard_normal((50, 40)) * 10.0 ** rng.uniform(-9, 9, (50, 1))
    b = 10.0 ** rng.uniform(-8, 2, 40)
    out = clip.clipped(g, ALL(50, bool), 0.7, denominator=b)
    norms = np.linalg.norm(out, axis=1)
    assert np.max(norms) <= 0.7 * (1 + 1e-15)
    inside = np.linalg.norm(g / b, axis=1) <= 0.7
    np.testing.assert_array_equal(out[inside], (g / b)[inside])


def test_projection_is_not_expansive_and_keeps_the_inside():
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((2, 500, 3)) * 1.5
    for a, b in zip(x, y, strict=True):
        pa, pb = clip.project(a, 1.0), clip.project(b, 1.0)
        assert np.linalg.norm(pa - pb) <= np.linalg.norm(a - b) + 1e-12
        assert np.linalg.norm(pa) <= 1 + 1e-15
    inside = np.array([0.1, 0.2, 0.3])
    np.testing.assert_array_equal(clip.project(inside, 1.0), inside)
