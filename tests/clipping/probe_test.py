"""The probe reads shapes and tells state of data from state of weights."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from tests.training import build
from tests.training.checks_test import Calls, Counter
from tf_dpadaptive.batch import Batch
from tf_dpadaptive.clipping.probe import probe

X, Y = build.data()
BATCH = Batch(tf.constant(X), tf.constant(Y))


def probed(*inner: Any, loss: Any = None) -> Any:
    model = build.compiled(
        keras.Sequential([keras.Input((4,)), *inner, layers.Dense(3)]),
        loss=loss,
    )
    return model, probe(model, BATCH)


def test_plain_model_is_fine():
    _, found = probed()
    assert found.refusals == ()
    assert found.connected == {0, 1}
    assert found.weight_state == ()
    assert "MatMul" in found.operations


def test_variables_that_the_loss_does_not_reach():
    inputs = keras.Input((4,))
    layers.Dense(2)(inputs)  # leads nowhere
    model = build.compiled(
        keras.Model(inputs, [layers.Dense(3)(inputs), layers.Dense(2)(inputs)]),
        loss=[build.labels_loss(), None],
    )
    batch = Batch(tf.constant(X), [tf.constant(Y), tf.constant(Y)])
    assert probe(model, batch).connected == {0, 1}


def test_state_of_weights_is_told_from_state_of_data():
    model, found = probed(Calls())
    assert [v.path for v in found.weight_state] == [model.layers[0].calls.path]
    assert found.refusals == ()
    _, found = probed(Counter())
    assert found.weight_state == ()
    assert len(found.refusals) == 1


def test_state_of_the_data_is_found_through_branches():
    class Hidden(Counter):
        def call(self, x: Any) -> Any:
            total = keras.ops.cond(
                keras.ops.sum(x) > 0,
                lambda: self.total + 1.0,
                lambda: self.total,
            )
            self.total.assign(total)
            return x

    _, found = probed(Hidden())
    assert len(found.refusals) == 1


def test_nothing_is_read_or_written():
    class Fails(layers.Layer):
        def call(self, x: Any) -> Any:
            return tf.debugging.check_numerics(x, "data was read")

    model = build.compiled(
        keras.Sequential([keras.Input((4,)), Fails(), layers.Dense(3)])
    )
    model.build((None, 4))
    before = [v.numpy() for v in model.variables]
    probe(model, Batch(tf.constant(X) * np.nan, tf.constant(Y)))
    for variable, value in zip(model.variables, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)


@pytest.mark.parametrize("kind", ["py_function", "queue", "slice"])
def test_what_keeps_a_row_outside_of_variables_is_refused(kind: str):
    queue = tf.queue.FIFOQueue(9, [tf.float32], [[3]])
    raw = tf.Variable(tf.zeros([3]))

    def loss(y: Any, p: Any) -> Any:
        if kind == "py_function":
            p = tf.ensure_shape(
                tf.py_function(lambda t: t, [p], tf.float32), [None, 3]
            )
        elif kind == "queue":
            queue.enqueue(p[0])
        else:
            raw[:1].assign(p[0, :1])
        return tf.reduce_mean(tf.square(p))

    _, found = probed(loss=loss)
    assert any("could keep raw data" in r for r in found.refusals)
