r"""Standard normal numbers from Philox words, by Box and Muller.

A pair of normals takes two words: 31 bits give the radius, 32 the angle, so
that |z| reaches 6.6 (TensorFlow's op: 5.7). Large arrays are drawn by a
function of their own that XLA compiles, in eager and graph mode too: 4 ns a
number on one core, where the same by TensorFlow's operations takes 8 (its own
op for normals 12), and within XLA on a CPU 30.
"""

import functools
import math
from collections.abc import Callable

import tensorflow as tf

from tf_dpadaptive.noise.philox import Words, words_by_op, words_by_rounds

_COMPILED_FROM = 2**14
"""Numbers from which compiling pays."""


def standard_normal(
    key: tf.Tensor, nonce: tf.Tensor, shape: tuple[int, ...]
) -> tf.Tensor:
    """Returns float32 N(0, 1) numbers, a function of key, nonce and size.

    Args:
        key: uint64 scalar, Philox' key.
        nonce: uint64 scalar, the upper half of Philox' counter.
        shape: Shape of the result.
    """
    count = math.prod(shape)
    if count < _COMPILED_FROM:
        waves = _normals(words_by_op(key, nonce, -(-count // 2)))
        numbers = tf.concat(waves, 0)
    else:
        numbers = _compiled(-(-count // 4))(key, nonce)
    return tf.reshape(numbers[:count], shape)


@functools.cache
def _compiled(blocks: int) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
    """A compiled function for this many blocks.

    XLA on a CPU makes one vectorised loop of what has one result, hence a pair
    of floats as one word. Whatever comes after would be drawn into that loop
    and do all of it anew for each of its own results; the `cond`, whose outcome
    is known to us and not to XLA, stands between.
    """

    def draw(key: tf.Tensor, nonce: tf.Tensor) -> tf.Tensor:
        pairs = tf.cond(
            tf.not_equal(tf.bitwise.invert(key), key),
            lambda: _packed(*_normals(words_by_rounds(key, nonce, blocks))),
            # Never taken; zeros must not pass for noise.
            lambda: _packed(*[tf.fill([2, blocks], math.nan)] * 2),
        )
        return tf.reshape(tf.bitcast(pairs, tf.float32), [-1])

    return tf.function(draw, jit_compile=True, autograph=False)


def _packed(low: tf.Tensor, high: tf.Tensor) -> tf.Tensor:
    """Two float32 as one uint64, of which `tf.bitcast` makes (low, high)."""
    halves = [
        tf.cast(tf.bitcast(half, tf.uint32), tf.uint64) for half in (low, high)
    ]
    shift = tf.constant(32, tf.uint64)
    return tf.bitwise.bitwise_or(
        halves[0], tf.bitwise.left_shift(halves[1], shift)
    )


def _normals(words: Words) -> list[tf.Tensor]:
    """Box and Muller: two float32 normals a pair of words, elementwise."""
    first, second = words
    # |word| keeps all its bits as a float near 0, where the tail comes from.
    signed = tf.cast(tf.bitcast(first, tf.int32), tf.float32)
    unit = tf.maximum(tf.abs(signed), 0.5) * 2.0**-31
    # A radius of 0 would be two coordinates without noise.
    unit = tf.minimum(unit, 1 - 2.0**-24)
    radius = tf.sqrt(-2.0 * tf.math.log(unit))
    return [radius * wave for wave in _cosine_and_sine(second)]


def _cosine_and_sine(word: tf.Tensor) -> list[tf.Tensor]:
    """Cosine and sine of 2π · word / 2³², within 2e-7, vectorised by XLA.

    The word is the nearest quarter turn and a rest of at most an eighth, for
    which the polynomials of Cephes (Moshier, 1984 ff., sinf and cosf) hold.
    """
    word = tf.bitcast(word, tf.int32)
    turned = tf.bitcast(word + tf.constant(2**29, tf.int32), tf.uint32)
    quarter = tf.bitcast(
        tf.bitwise.right_shift(turned, tf.constant(30, tf.uint32)), tf.int32
    )
    rest = word - tf.bitwise.left_shift(quarter, 30)
    x = tf.cast(rest, tf.float32) * (math.pi * 2.0**-31)
    y = x * x
    sine = ((-1.9515295891e-4 * y + 8.3321608736e-3) * y - 1.6666654611e-1) * y
    sine = sine * x + x
    cosine = (2.443315711809948e-5 * y - 1.388731625493765e-3) * y
    cosine = (cosine + 4.166664568298827e-2) * y * y - 0.5 * y + 1.0
    odd = tf.equal(tf.bitwise.bitwise_and(quarter, 1), 1)
    left = tf.logical_or(tf.equal(quarter, 1), tf.equal(quarter, 2))
    across = tf.where(odd, sine, cosine)
    along = tf.where(odd, cosine, sine)
    return [
        tf.where(left, -across, across),
        tf.where(quarter >= 2, -along, along),
    ]
