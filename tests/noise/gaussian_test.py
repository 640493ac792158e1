"""The distribution of the noise, and that it is a function of its key."""

import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

from tf_dpadaptive.noise.gaussian import standard_normal

COUNTER = tf.constant([0, 7], tf.uint64)


def drawn(key, shape, counter=COUNTER):
    return standard_normal(tf.constant([key], tf.uint64), counter, shape)


class StandardNormalTest:
    def test_distribution(self):
        # KS over 10⁶ numbers of a fixed key: p < 10⁻⁴ would be an alarm.
        values = drawn(1, (10**6,)).numpy().astype(float)
        assert stats.kstest(values, "norm").pvalue > 1e-4
        assert stats.kstest(1.01 * values, "norm").pvalue < 1e-4
        assert stats.kstest(values + 0.01, "norm").pvalue < 1e-4

    def test_tail(self):
        # 4 million numbers: Poisson counts, five deviations either side.
        values = np.abs(drawn(2, (4 * 10**6,)).numpy())
        for bound in (3.0, 4.0, 4.5):
            want = values.size * 2 * stats.norm.sf(bound)
            assert abs((values > bound).sum() - want) < 5 * want**0.5

    def test_pairs_are_independent(self):
        # Both halves come from the same words; 5 deviations of 10⁶ products.
        values = drawn(3, (2 * 10**6,)).numpy().astype(float)
        first, second = values[: 10**6], values[10**6 :]
        for power in (1, 2):
            a, b = first**power, second**power
            assert abs(np.corrcoef(a, b)[0, 1]) < 5e-3

    @pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 5), (0,)])
    def test_shapes(self, shape):
        values = drawn(4, shape)
        assert values.shape == shape
        assert values.dtype == tf.float32
        assert np.all(np.isfinite(values))

    def test_is_a_function_of_key_and_counter(self):
        first = drawn(5, (9,)).numpy()
        np.testing.assert_array_equal(first, drawn(5, (9,)))
        other = tf.constant([0, 8], tf.uint64)
        assert not np.any(first == drawn(6, (9,)).numpy())
        assert not np.any(first == drawn(5, (9,), other).numpy())
        assert not np.any(first == drawn(5 + 2**32, (9,)).numpy())

    def test_graph_is_eager(self):
        traced = tf.function(lambda: drawn(5, (9,)))
        np.testing.assert_allclose(traced(), drawn(5, (9,)), rtol=1e-6)
