import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.clipping.layerwise.compare import (
    assert_same,
    chunk_of,
    compiled,
)
from tf_dpadaptive.clipping.geometry import IDENTITY
from tf_dpadaptive.clipping.layerwise import LayerwiseEngine

ROWS, STEPS, PICKED = 4, 5, 2
rng = np.random.default_rng(6)


def picking():
    """A model that picks steps of a sequence by number."""
    x = keras.Input((STEPS, 3))
    places = keras.Input((PICKED,), dtype="int32")
    hidden = keras.layers.Dense(4, activation="tanh")(x)
    index = keras.layers.Lambda(
        lambda t: tf.gather(t[0], t[1], batch_dims=1),
        output_shape=(PICKED, 4),
    )([hidden, places])
    output = keras.layers.Dense(2)(keras.layers.Flatten()(index))
    return compiled(keras.Model([x, places], output))


def data(first):
    x = np.random.default_rng(1).standard_normal((ROWS, STEPS, 3))
    places = np.array([first, [0, 1], [2, 2], [4, 0]], np.int32)
    y = np.random.default_rng(2).standard_normal((ROWS, 2))
    return [x.astype(np.float32), places], y.astype(np.float32)


def test_looked_up_steps_equal_the_reference():
    assert_same(picking(), *data([3, 3]))


@pytest.mark.xla
def test_places_outside_reach_no_other_example():
    model = picking()
    norms = []
    for first in ([3, 4], [STEPS + 1, 2 * STEPS + 2]):
        example, chunk = chunk_of(model, *data(first))
        engine = LayerwiseEngine(example)

        def work(values, chunk, engine=engine):
            return engine.norms_and_sum(values, chunk, 1.0, IDENTITY)[0]

        work = tf.function(work, autograph=False, jit_compile=True)
        norms.append(work(example.values(), chunk))
    for inside, outside in zip(*(n.values() for n in norms), strict=True):
        np.testing.assert_allclose(outside[1:], inside[1:], rtol=1e-5)
