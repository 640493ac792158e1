"""Metrics see raw rows and may write to their own variables alone."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from tests.training import build

X, Y = build.data()
MODES = {
    "eager": {"run_eagerly": True},
    "graph": {"run_eagerly": False, "jit_compile": False},
    "xla": {"run_eagerly": False, "jit_compile": True},
}
KINDS = ["eager", "graph", pytest.param("xla", marks=pytest.mark.xla)]


class Writes(keras.metrics.Metric):
    """A metric that does something with the predictions besides counting."""

    def __init__(self, write: Callable[[Any], Any]) -> None:
        super().__init__(name="writes")
        self.total = self.add_variable((), "zeros", name="total")
        self.write = write

    def update_state(
        self, y_true: Any, y_pred: Any, sample_weight: Any = None
    ) -> None:
        self.total.assign_add(keras.ops.mean(y_pred))
        self.write(y_pred)

    def result(self) -> Any:
        return self.total + 0.0


def with_writes(write: Callable[[Any, Any], Any], mode: str = "graph") -> Any:
    model = build.mlp()
    head = model.get_layer("head")
    metric = Writes(lambda pred: write(head, pred))
    return build.compiled(model, metrics=[metric], **MODES[mode])


def to_bias(head: Any, pred: Any) -> None:
    head.bias.assign(keras.ops.max(pred, axis=0))


def raw(head: Any, pred: Any) -> None:
    head.bias.value.assign(tf.reduce_max(pred, axis=0))


def one_place(head: Any, pred: Any) -> None:
    head.bias.value[0].assign(tf.reduce_max(pred))


def in_a_branch(head: Any, pred: Any) -> None:
    def change() -> Any:
        head.bias.value.assign(tf.reduce_max(pred, axis=0))
        return tf.constant(True)

    tf.cond(tf.reduce_sum(pred) > 0, change, lambda: tf.constant(False))


def in_a_function(head: Any, pred: Any) -> None:
    tf.function(lambda p: raw(head, p), autograph=False)(pred)


def in_a_loop(head: Any, pred: Any) -> None:
    def body(i: Any) -> Any:
        with tf.control_dependencies([head.bias.value.assign(pred[i])]):
            return i + 1

    tf.while_loop(lambda i: i < 2, body, [0])


@pytest.mark.parametrize(
    "write", [to_bias, raw, one_place, in_a_branch, in_a_function, in_a_loop]
)
def test_a_metric_that_writes_to_a_weight_is_refused(write: Any):
    model = with_writes(write)
    before = build.state(model)
    with pytest.raises(ValueError, match=r"head/bias.*add_variable"):
        model.fit(X, Y, verbose=0)
    assert build.unchanged(model, before)


@pytest.mark.parametrize("mode", KINDS)
def test_it_is_refused_in_every_mode(mode: str):
    model = with_writes(to_bias, mode)
    before = build.state(model)
    with pytest.raises(ValueError, match=r"head/bias.*add_variable"):
        model.train_on_batch(X, Y)
    assert build.unchanged(model, before)


def test_a_weight_that_a_metric_holds_is_not_its_own():
    class Holder(layers.Layer):
        def build(self, shape: Any) -> None:
            self.kept = self.add_weight(
                shape=(3,), initializer="zeros", trainable=False, name="kept"
            )

        def call(self, x: Any) -> Any:
            return x

    holder = Holder()
    model = keras.Sequential([*build.mlp().layers, holder])
    model.build((None, 4))
    metric = Writes(lambda pred: metric.held.assign(pred[0]))
    metric.held = holder.kept
    model = build.compiled(model, metrics=[metric])
    assert any(v is metric.held for v in metric.variables)
    with pytest.raises(ValueError, match="metrics write to variable.*kept"):
        model.fit(X, Y, verbose=0)


def test_nor_may_a_reset_write_to_a_weight():
    class Resets(Writes):
        def reset_state(self) -> None:
            head.bias.assign(keras.ops.broadcast_to(self.total, (3,)))
            super().reset_state()

    model = build.mlp()
    head = model.get_layer("head")
    model = build.compiled(model, metrics=[Resets(lambda pred: None)])
    with pytest.raises(ValueError, match="head/bias"):
        model.train_on_batch(X, Y)


def test_a_raw_variable_of_a_metric_is_refused_by_name():
    kept = tf.Variable(tf.zeros([3]), name="kept")
    model = with_writes(lambda head, pred: kept.assign(pred[0]))
    with pytest.raises(ValueError, match="kept"):
        model.fit(X, Y, verbose=0)


def test_python_code_in_a_metric_is_refused():
    def runs_python(head: Any, pred: Any) -> None:
        tf.py_function(lambda p: head.bias.assign(p[0]), [pred], [])

    model = with_writes(runs_python)
    with pytest.raises(ValueError, match="EagerPyFunc"):
        model.fit(X, Y, verbose=0)


class KeepsRow(keras.Model):
    """Its `compute_metrics` puts an example into a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.head = layers.Dense(3)
        self.kept = self.add_weight(
            shape=(4,), initializer="zeros", trainable=False, name="kept"
        )

    def call(self, x: Any) -> Any:
        return self.head(x) + 0.0 * keras.ops.sum(self.kept)

    def compute_metrics(
        self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None
    ) -> Any:
        self.kept.assign(x[0])
        return super().compute_metrics(x, y, y_pred, sample_weight)


@pytest.mark.parametrize("metrics", [[], ["accuracy"]])
@pytest.mark.parametrize("mode", ["eager", "graph"])
def test_compute_metrics_that_keeps_a_row_is_refused(mode: str, metrics: Any):
    model = build.compiled(KeepsRow(), metrics=metrics, **MODES[mode])
    with pytest.raises(ValueError, match="kept"):
        model.fit(X, Y, verbose=0)
    assert not model.kept.numpy().any()


class Lazy(keras.metrics.Metric):
    """Makes its variable at its first update."""

    total: Any = None

    def update_state(
        self, y_true: Any, y_pred: Any, sample_weight: Any = None
    ) -> None:
        if self.total is None:
            self.total = self.add_variable((), "zeros", name="total")
        self.total.assign_add(keras.ops.mean(y_pred))

    def result(self) -> Any:
        return 0.0 if self.total is None else self.total + 0.0


class OwnMetrics(keras.Model):
    """Updates metrics of its own, one of them made late."""

    def __init__(self) -> None:
        super().__init__()
        self.head = layers.Dense(3)
        self.lazy = Lazy(name="lazy")

    def call(self, x: Any) -> Any:
        return self.head(x)

    def compute_metrics(
        self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None
    ) -> Any:
        self.lazy.update_state(y, y_pred)
        return super().compute_metrics(x, y, y_pred, sample_weight)


@pytest.mark.parametrize("mode", ["eager", "graph"])
def test_variables_made_at_the_first_update_are_the_metrics_own(mode: str):
    model = build.compiled(
        OwnMetrics(),
        build.sgd(rate=0.0, num_examples=len(X)),
        metrics=["accuracy"],
        **MODES[mode],
    )
    shown = model.fit(X, Y, verbose=0).history
    np.testing.assert_allclose(
        shown["lazy"][0], np.mean(model.predict(X, verbose=0)), rtol=1e-5
    )


# Padding weighs 0 under XLA; Keras warns of such a weight where it counts ints.
@pytest.mark.filterwarnings("ignore:You are passing weight as `float`")
@pytest.mark.parametrize("mode", KINDS)
def test_keras_metrics_go_on_working(mode: str):
    inputs = keras.Input((4,))
    hidden = layers.Dense(4, activation="tanh")(inputs)
    model = build.compiled(
        keras.Model(
            inputs,
            {
                "kind": layers.Dense(3, activation="softmax")(hidden),
                "yes": layers.Dense(1, activation="sigmoid")(hidden),
            },
        ),
        loss={
            "kind": "categorical_crossentropy",
            "yes": "binary_crossentropy",
        },
        metrics={
            "kind": [
                "accuracy",
                keras.metrics.F1Score(),
                keras.metrics.OneHotMeanIoU(3),
                keras.metrics.TopKCategoricalAccuracy(2),
            ],
            "yes": [
                keras.metrics.AUC(),
                keras.metrics.Precision(),
                keras.metrics.SensitivityAtSpecificity(0.5),
                keras.metrics.MeanSquaredError(),
                Writes(lambda pred: None),
            ],
        },
        weighted_metrics={"yes": [keras.metrics.BinaryAccuracy()]},
        **MODES[mode],
    )
    targets = {
        "kind": np.eye(3, dtype=np.float32)[Y],
        "yes": (X[:, :1] > 0).astype(np.float32),
    }
    model.train_on_batch(X, targets)
    model.train_on_batch(X, targets)
    assert model.ledger.updates == 2
