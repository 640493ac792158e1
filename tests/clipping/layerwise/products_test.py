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
