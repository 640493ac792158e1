"""The distribution of the noise, and that it is a function of its key."""

import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

from tf_dpadaptive.noise import gaussian, philox
from tf_dpadaptive.noise.gaussian import standard_normal


def drawn(key, shape, nonce=7):
    return standard_normal(
        tf.constant(key, tf.uint64), tf.constant(nonce, tf.uint64), shape
    )


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
        # Four come from a block, two from a pair of words; 5 deviations of
        # 10⁶ products.
        values = drawn(3, (2, 10**6, 2)).numpy().astype(float)
        four = values.transpose(0, 2, 1).reshape(4, -1)
        for power in (1, 2):
            correlation = np.corrcoef(four**power)
            assert np.abs(correlation - np.eye(4)).max() < 5e-3

    @pytest.mark.parametrize(
        "shape", [(), (1,), (7,), (3, 5), (0,), (2, 8191), (127, 129, 1)]
    )
    def test_shapes(self, shape):
        values = drawn(4, shape)
        assert values.shape == shape
        assert values.dtype == tf.float32
        assert np.all(np.isfinite(values))

    @pytest.mark.parametrize("size", [9, 20_001])
    def test_is_a_function_of_key_and_nonce(self, size):
        first = drawn(5, (size,)).numpy()
        np.testing.assert_array_equal(first, drawn(5, (size,)))
        for key, nonce in ((6, 7), (5, 8), (5 + 2**32, 7), (5, 7 + 2**32)):
            same = first == drawn(key, (size,), nonce).numpy()
            assert same.mean() < 1e-3

    @pytest.mark.parametrize("size", [9, 20_001])
    @pytest.mark.parametrize("jit", [False, True])
    def test_traced_is_eager(self, size, jit):
        traced = tf.function(lambda: drawn(5, (size,)), jit_compile=jit)
        want = drawn(5, (size,))
        np.testing.assert_allclose(traced(), want, rtol=1e-5, atol=1e-6)

    @pytest.mark.parametrize("size", [103, 20_001])
    @pytest.mark.parametrize("key", [0, 5, 2**64 - 1])
    def test_is_box_and_muller_of_the_words(self, size, key):
        nonce = tf.constant(2**40 + 3, tf.uint64)
        words = tf.raw_ops.StatelessRandomUniformFullIntV2(
            shape=[-(-size // 4) * 4],
            key=tf.constant([key], tf.uint64),
            counter=tf.stack([tf.constant(0, tf.uint64), nonce]),
            alg=1,
            dtype=tf.int32,
        )
        words = words.numpy().astype(float)
        if size < 2**14:
            first, second = words.reshape(2, -1)
        else:
            first, second = words.reshape(-1, 2, 2).transpose(2, 1, 0)
        unit = np.maximum(np.abs(first), 0.5) / 2**31
        unit = np.minimum(unit, 1 - 2.0**-24)
        length, turned = np.sqrt(-2 * np.log(unit)), second * np.pi / 2**31
        waves = [length * np.cos(turned), length * np.sin(turned)]
        want = np.ravel(np.stack(waves, 0 if size < 2**14 else -1))[:size]
        got = drawn(key, (size,), nonce)
        np.testing.assert_allclose(got, want, rtol=2e-6, atol=2e-6)

    def test_no_pair_is_without_noise(self):
        # The words that round to a unit of 1 and would have a radius of 0.
        words = np.uint32([2**31 - 1, 2**31, 2**31 + 1, 2**31 - 65, 0])
        angles = np.uint32([0, 2**30, 5, 2**31, 77])
        pair = gaussian._normals((tf.constant(words), tf.constant(angles)))
        radius = np.hypot(*(wave.numpy() for wave in pair))
        assert np.all(radius[:4] > 3e-4)
        assert np.all(radius[:4] < 4e-4)
        assert 6.5 < radius[4] < 6.7


class PhiloxTest:
    @pytest.mark.parametrize("jit", [False, True])
    @pytest.mark.parametrize(
        ("key", "nonce"), [(0, 0), (1, 2**63), (2**64 - 1, 2**64 - 1)]
    )
    def test_rounds_are_the_op(self, key, nonce, jit):
        key, nonce = tf.constant(key, tf.uint64), tf.constant(nonce, tf.uint64)
        rounds = tf.function(
            lambda: philox.words_by_rounds(key, nonce, 1000), jit_compile=jit
        )
        want = np.ravel(philox.words_by_op(key, nonce, 2000)).reshape(-1, 2, 2)
        np.testing.assert_array_equal(rounds(), want.transpose(2, 1, 0))

    def test_known_answers(self):
        # Of the authors' reference code (Random123, kat_vectors).
        zero = tf.constant(0, tf.uint64)
        words = philox.words_by_rounds(zero, zero, 1)
        want = [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
        assert np.ravel(np.stack(words, -1)).tolist() == want
