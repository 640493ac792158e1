"""Rows that meet only where the data call for it are found in the graph."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.clipping.layerwise.compare import assert_same, chunk_of, compiled
from tf_dpadaptive.clipping.layerwise import LayerwiseEngine, NotLayerwise

layers = keras.layers


class Own(layers.Layer):
    """A layer without weights."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def call(self, x):
        return self.function(x)

    def compute_output_shape(self, shape):
        return shape


def large(then):
    """Does something where an entry is large, which none is at first."""
    return lambda x: tf.where(tf.abs(x) > 50, then(x), x)


def if_any(then):
    return lambda x: tf.cond(
        tf.reduce_any(tf.abs(x) > 50), lambda: then(x), lambda: x
    )


def scaled(x):
    return x / tf.maximum(1.0, tf.reduce_max(tf.abs(x)))


def thrice(function):
    return lambda x: tf.while_loop(
        lambda i, y: i < 3, lambda i, y: (i + 1, function(y)), (0, x)
    )[1]


MEET = {
    "scaled by all": scaled,
    "in a function": tf.function(scaled),
    "in a loop": thrice(scaled),
    "turned round": if_any(tf.negative),
    "centred": if_any(lambda x: x - tf.reduce_mean(x, 0)),
    "sorted": large(lambda x: tf.sort(x, axis=0)),
    "rolled": large(lambda x: tf.roll(x, 1, 0)),
    "reversed": large(lambda x: tf.reverse(x, [0])),
    "sliced": large(lambda x: x[::-1]),
    "summed": large(lambda x: tf.cumsum(x, 0)),
    "multiplied": large(lambda x: tf.matmul(x, x, transpose_b=True) @ x),
    "gathered": large(
        lambda x: tf.gather(x, tf.range(tf.shape(x)[0] - 1, -1, -1))
    ),
    "chosen": lambda x: x + tf.reduce_sum(tf.boolean_mask(x, x > 50)),
}

APART = {
    "scaled by its own": lambda x: (
        x / tf.reduce_max(tf.abs(x), axis=1, keepdims=True)
    ),
    "sorted": lambda x: tf.sort(x, axis=1),
    "reversed": lambda x: x[:, ::-1],
    "folded": lambda x: tf.reshape(
        tf.cumsum(tf.reshape(x, [-1, 2]), 1), [-1, 4]
    ),
    "in a loop": thrice(tf.tanh),
    "in a function": tf.function(tf.tanh),
    "by the number of rows": lambda x: tf.cond(
        tf.shape(x)[0] > 0, lambda: tf.tanh(x), lambda: x
    ),
}


def model_of(function):
    return compiled(
        keras.Sequential(
            [keras.Input((4,)), layers.Dense(4), Own(function), layers.Dense(3)]
        )
    )


def data():
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((2, 6, 4)).astype(np.float32)
    return x, y[:, :3]


@pytest.mark.parametrize("function", MEET.values(), ids=MEET)
def test_rows_that_meet(function):
    example, chunk = chunk_of(model_of(function), *data())
    with pytest.raises(NotLayerwise, match="The rows of a batch meet"):
        LayerwiseEngine(example).plan(chunk)


@pytest.mark.parametrize("function", APART.values(), ids=APART)
def test_rows_that_stay_apart(function):
    assert_same(model_of(function), *data())
