"""Norms of single products a ⊗ b, in range and out of it."""

import numpy as np
import pytest
import tensorflow as tf

from tf_dpadaptive.clipping.layerwise.forms import Outer
from tf_dpadaptive.clipping.layerwise.products import Local, norms_of_products
from tf_dpadaptive.clipping.layerwise.view import MatrixView

PLAIN = Local(None, None)


def squares(left, right):
    """By the package, and in float64."""
    left, right = (np.asarray(t, np.float32) for t in (left, right))
    outer = Outer(
        tf.constant(left[:, None, None]),
        tf.constant(right[:, None, None]),
        MatrixView.plain(left.shape[1:], right.shape[1:]),
    )
    function = tf.function(lambda: norms_of_products(outer, PLAIN))
    left, right = (np.square(t.astype(float)).sum(1) for t in (left, right))
    return function().numpy(), left * right


class ProductTest:
    @pytest.mark.parametrize(
        ("left", "right"),
        [
            (1.0, 1.0),
            (1e6, 1e-6),
            (1e-12, 1e12),  # squares of 1e24: beyond what float32 may sum
            (1e-25, 1e25),  # squares of 1e-50: zero in float32
            (1e30, 1e-30),
            (3e-20, 1e19),
        ],
    )
    def test_of_any_size(self, left, right):
        rng = np.random.default_rng(0)
        a = rng.standard_normal((5, 300))
        b = rng.standard_normal((5, 70))
        a[0] = 0.0  # an example without gradient beside the others
        got, want = squares(a * left, b * right)
        np.testing.assert_allclose(got, want, rtol=2e-6)

    def test_one_extreme_row_spoils_no_other(self):
        a = np.ones((4, 3))
        a[1], a[2], a[3] = 1e-25, 1e30, np.nan
        b = np.ones((4, 2))
        b[1], b[2] = 1e25, 1e-30
        got, _ = squares(a, b)
        np.testing.assert_allclose(got[:3], 6.0, rtol=1e-5)
        assert np.isnan(got[3])

    def test_is_never_below_the_truth_by_more_than_rounding(self):
        # What vanishes in float32 must be nothing beside any clip norm.
        a = np.full((1, 1000), 1.0e-19)
        got, want = squares(a, np.full((1, 1), 9e4))
        assert np.sqrt(want[0]) - np.sqrt(got[0]) < 1e-12


class StepsTest:
    """Norms of sums of products, whose steps cancel or not."""

    @staticmethod
    def squares(left, right, **options):
        left, right = (np.asarray(t, np.float32) for t in (left, right))
        outer = Outer(
            tf.constant(left[:, None]),
            tf.constant(right[:, None]),
            MatrixView.plain(left.shape[2:], right.shape[2:]),
        )
        function = tf.function(
            lambda: norms_of_products(outer, PLAIN), **options
        )
        left, right = left.astype(float), right.astype(float)
        rows = np.matmul(left, left.swapaxes(1, 2))
        rows = rows * np.matmul(right, right.swapaxes(1, 2))
        return function().numpy(), rows.sum((1, 2))

    @pytest.mark.parametrize("jit", [False, True])
    @pytest.mark.parametrize("length", [784, 10_000, 100_000])
    @pytest.mark.parametrize("apart", [0.01, 1e-3])
    def test_two_steps_that_cancel(self, length, apart, jit):
        # As of a layer called on two inputs whose outputs are subtracted;
        # constant rows, so that float32 rounds the same way all along.
        start = np.random.default_rng(0).uniform(1, 2, (8, 1))
        left = np.stack([start, start * (1 + apart)], 1) * np.ones(length)
        right = np.stack([np.ones((8, 1)), -np.ones((8, 1))], 1)
        got, want = self.squares(left, right, jit_compile=jit)
        assert np.all(got >= want * (1 - 1e-6))
        np.testing.assert_allclose(got, want, rtol=5e-3)

    @pytest.mark.parametrize("jit", [False, True])
    @pytest.mark.parametrize("apart", [1.0, 0.01, 1e-3])
    def test_many_steps_of_long_rows(self, apart, jit):
        rng = np.random.default_rng(0)
        left = 1 + apart * rng.standard_normal((3, 12, 5000))
        right = rng.standard_normal((3, 12, 4))
        right = right - right.mean(1, keepdims=True)
        got, want = self.squares(left, right, jit_compile=jit)
        assert np.all(got >= want * (1 - 1e-6))
        np.testing.assert_allclose(got, want, rtol=5e-3)

    @pytest.mark.parametrize("size", [1e-25, 1e-19, 1.0, 1e19, 1e25])
    @pytest.mark.parametrize("length", [30, 5000])
    def test_of_any_size(self, size, length):
        rng = np.random.default_rng(0)
        left = size * rng.standard_normal((3, 10, length))
        right = rng.standard_normal((3, 10, 6)) / size
        left[0] = 0.0
        got, want = self.squares(left, right)
        np.testing.assert_allclose(got, want, rtol=1e-3)
