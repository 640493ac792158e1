r"""Philox 4x32-10: the words that TensorFlow's own op gives, vectorised by XLA.

XLA on a CPU joins the words of TensorFlow's op one by one; here the rounds are
elementwise operations on whole arrays, which it turns into one vectorised loop.

Reference: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as
1, 2, 3", SC 2011.
"""

from collections.abc import Sequence

import tensorflow as tf

_MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
_KEY_STEPS = 0x9E3779B9, 0xBB67AE85
_ROUNDS = 10
#: Number of the algorithm in TensorFlow's ops.
_PHILOX = 1

Words = tuple[tf.Tensor, tf.Tensor]


def words_by_op(key: tf.Tensor, nonce: tf.Tensor, pairs: int) -> Words:
    """Returns pairs of words by TensorFlow's op.

    Args:
        key: uint64 scalar.
        nonce: uint64 scalar: the upper half of the counter. The lower half
            counts the blocks of four words.
        pairs: How many.

    Returns:
        The first and the second words, uint32 (pairs,).
    """
    low = tf.zeros([], tf.uint64)
    words = stream(key, low, nonce, [2, pairs], tf.uint32)
    first, second = tf.unstack(words, num=2)
    return first, second


def stream(
    key: tf.Tensor,
    low: tf.Tensor,
    high: tf.Tensor,
    shape: Sequence[int],
    dtype: tf.DType,
) -> tf.Tensor:
    """Returns Philox' words from a counter on, by TensorFlow's op.

    Args:
        key: uint64 scalar.
        low: uint64 scalar, the lower half of the counter.
        high: uint64 scalar, its upper half.
        shape: Shape of the result.
        dtype: uint32, or uint64 for two words a number.
    """
    return tf.raw_ops.StatelessRandomUniformFullIntV2(
        shape=shape,
        key=tf.reshape(key, [1]),
        counter=tf.stack([low, high]),
        alg=_PHILOX,
        dtype=dtype,
    )


def words_by_rounds(key: tf.Tensor, nonce: tf.Tensor, blocks: int) -> Words:
    """Returns pairs of the same words by elementwise operations, for XLA.

    Args:
        key: As for `words_by_op`.
        nonce: As for `words_by_op`.
        blocks: Blocks of four words.

    Returns:
        The first and the second words of the two pairs of each block,
        uint32 (2, blocks).
    """
    xor = tf.bitwise.bitwise_xor
    keys = tf.unstack(tf.bitcast(key, tf.uint32), num=2)
    upper = tf.unstack(tf.bitcast(nonce, tf.uint32), num=2)
    a = tf.bitcast(tf.range(blocks, dtype=tf.int32), tf.uint32)
    b = tf.zeros([blocks], tf.uint32)
    c, d = b + upper[0], b + upper[1]
    for _ in range(_ROUNDS):
        (high_a, low_a), (high_c, low_c) = (
            _product(word, by)
            for word, by in zip((a, c), _MULTIPLIERS, strict=True)
        )
        a, b = xor(xor(high_c, b), keys[0]), low_c
        c, d = xor(xor(high_a, d), keys[1]), low_a
        keys = [
            word + tf.constant(step, tf.uint32)
            for word, step in zip(keys, _KEY_STEPS, strict=True)
        ]
    return _either(a, c), _either(b, d)


def _either(first: tf.Tensor, second: tf.Tensor) -> tf.Tensor:
    """Both, as rows; not by `tf.stack`, which XLA turns into branches."""
    above = tf.constant([[True], [False]])
    return tf.where(above, first[None], second[None])


def _product(word: tf.Tensor, by: int) -> tuple[tf.Tensor, tf.Tensor]:
    """The upper and the lower half of a product of 32-bit words."""
    product = tf.cast(word, tf.uint64) * tf.constant(by, tf.uint64)
    high = tf.bitwise.right_shift(product, tf.constant(32, tf.uint64))
    return tf.cast(high, tf.uint32), tf.cast(product, tf.uint32)
