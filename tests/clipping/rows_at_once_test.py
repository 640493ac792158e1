"""Vectorized rows stay apart, whatever ids they look up."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.clipping.layerwise.compare import assert_rows_stay_apart, compiled
from tf_dpadaptive.clipping.example import ExampleLoss
from tf_dpadaptive.clipping.layerwise import LayerwiseEngine
from tf_dpadaptive.clipping.rows_at_once import rows_at_once
from tf_dpadaptive.clipping.vectorized import VectorizedEngine


class OwnCall(keras.layers.Embedding):
    """No rule holds for it: it falls back."""

    def call(self, inputs):
        return super().call(inputs)


@pytest.mark.parametrize(
    "operation",
    [tf.math.unsorted_segment_sum, tf.math.unsorted_segment_max],
)
def test_ids_outside_are_dropped(operation):
    ids = tf.constant([[0, 1, 1], [2, 5, 3], [-1, 0, 7]])
    data = tf.reshape(tf.range(1.0, 10.0), [3, 3])
    got = rows_at_once(lambda row: operation(row[0], row[1], 3), (data, ids))
    for i in range(3):
        kept = (ids[i] >= 0) & (ids[i] < 3)
        want = operation(data[i][kept], ids[i][kept], 3)
        np.testing.assert_array_equal(got[i], want)


@pytest.mark.xla
@pytest.mark.parametrize(
    ("engine", "layer"),
    [(VectorizedEngine, keras.layers.Embedding), (LayerwiseEngine, OwnCall)],
)
def test_no_other_example_receives_the_gradient_of_ids_outside(engine, layer):
    rng = np.random.default_rng(2)
    inputs = keras.Input((4,), dtype="int64")
    last = keras.layers.Dense(3, trainable=False)
    model = compiled(keras.Model(inputs, last(layer(7, 3)(inputs))))
    assert_rows_stay_apart(
        model,
        engine(ExampleLoss(model)),
        rng.integers(0, 7, (4, 4)),
        rng.standard_normal((4, 4, 3)).astype(np.float32),
        1e6,
    )
