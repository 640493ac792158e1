"""What `fit` shows is of the real rows: as `evaluate` on them alone."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import tf_dpadaptive as dpa
from tests.training import build

X, Y = build.data(32)
WEIGHT = np.linspace(0.1, 2.0, 32).astype(np.float32)
GRAPH = {"jit_compile": False}
XLA = {"jit_compile": True}
MODES = [
    pytest.param(GRAPH, id="graph"),
    pytest.param(XLA, id="xla", marks=pytest.mark.xla),
]


def still() -> Any:
    """An optimizer that leaves the weights alone: shown numbers are exact."""
    return build.sgd(rate=0.0)


def rows_of(batches: tf.data.Dataset) -> Any:
    """The real rows of a dataset of batches, as arrays."""
    kept = []
    padding = 0
    for batch in batches:
        real = batch.real().numpy()
        padding += int((~real).sum())
        kept.append(
            tf.nest.map_structure(
                lambda t, real=real: None if t is None else t.numpy()[real],
                batch[:3],
            )
        )
    # Half of the rows are padding, or more.
    assert padding >= sum(len(tf.nest.flatten(k)[0]) for k in kept)
    return tf.nest.map_structure(
        lambda *parts: None if parts[0] is None else np.concatenate(parts),
        *kept,
    )


def shown_and_true(model: Any, *data: Any) -> tuple[Any, Any]:
    """Numbers of a fit on padded batches, and of `evaluate` on their rows."""
    plan = model.optimizer.plan
    shown = model.fit(plan.batches(*data, seed=6), verbose=0).history
    x, y, weight = rows_of(plan.batches(*data, seed=6))
    true = model.evaluate(
        x, y, sample_weight=weight, verbose=0, return_dict=True, batch_size=128
    )
    return {k: v[-1] for k, v in shown.items()}, true


def assert_same(shown: Any, true: Any) -> None:
    assert set(shown) == set(true)
    for name, value in true.items():
        np.testing.assert_allclose(
            shown[name], value, rtol=2e-5, atol=1e-6, err_msg=name
        )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("weighted", [False, True])
def test_loss_and_metrics_are_those_of_the_real_rows(mode: Any, weighted: bool):
    model = build.compiled(
        optimizer=still(),
        run_eagerly=False,
        metrics=["accuracy", keras.metrics.SparseTopKCategoricalAccuracy(2)],
        weighted_metrics=[
            keras.metrics.SparseCategoricalCrossentropy(
                from_logits=True, name="crossentropy"
            )
        ],
        **mode,
    )
    model.train_on_batch(X[:8], Y[:8])
    data = (X, Y, WEIGHT) if weighted else (X, Y)
    shown, true = shown_and_true(model, *data)
    assert 0.1 < true["accuracy"] < 0.9
    assert_same(shown, true)


def two_heads() -> Any:
    inputs = keras.Input((4,))
    hidden = layers.Dense(4, activation="tanh")(inputs)
    return keras.Model(
        inputs,
        {
            "kind": layers.Dense(3, name="kind")(hidden),
            "size": layers.Dense(1, name="size")(hidden),
        },
    )


@pytest.mark.parametrize("mode", MODES)
def test_losses_and_metrics_of_each_output_are_those_of_the_real_rows(
    mode: Any,
):
    model = build.compiled(
        two_heads(),
        still(),
        run_eagerly=False,
        loss={"kind": build.labels_loss(), "size": "mse"},
        loss_weights={"kind": 0.5, "size": 3.0},
        metrics={"kind": ["accuracy"], "size": ["mae", "mse"]},
        **mode,
    )
    targets = {"kind": Y, "size": X[:, :1] * 2.0}
    shown, true = shown_and_true(model, X, targets)
    assert {"loss", "kind_loss", "size_loss", "kind_accuracy"} < set(true)
    assert_same(shown, true)


@pytest.mark.parametrize("mode", MODES)
def test_metrics_of_masked_outputs_are_those_of_the_real_rows(mode: Any):
    model = build.compiled(
        keras.Sequential(
            [
                keras.Input((4,), dtype="int32"),
                layers.Embedding(6, 3, mask_zero=True),
                layers.Dense(3),
            ]
        ),
        still(),
        run_eagerly=False,
        metrics=["accuracy"],
        weighted_metrics=[
            keras.metrics.SparseCategoricalAccuracy(name="weighted")
        ],
        **mode,
    )
    rng = np.random.default_rng(1)
    tokens = rng.integers(1, 6, (32, 4)).astype(np.int32)
    tokens[np.arange(4) >= rng.integers(1, 5, (32, 1))] = 0
    tags = rng.integers(0, 3, (32, 4)).astype(np.int32)
    weight = rng.uniform(0, 2, (32, 4)).astype(np.float32)
    shown, true = shown_and_true(model, tokens, tags, weight)
    # The loss of a masked batch is a mean over its tokens in Keras; over its
    # examples here (each by itself): see the log. Metrics are the same.
    shown.pop("loss")
    true.pop("loss")
    assert_same(shown, true)


def test_loss_of_masked_rows_is_the_mean_of_single_examples():
    model = build.compiled(
        keras.Sequential(
            [
                keras.Input((4,), dtype="int32"),
                layers.Embedding(6, 3, mask_zero=True),
                layers.Dense(3),
            ]
        ),
        still(),
    )
    tokens = np.array([[1, 0, 0, 0], [2, 3, 4, 5]] * 4, np.int32)
    tags = np.tile(np.arange(3), 11)[:32].reshape(8, 4)
    shown = model.train_on_batch(tokens, tags)
    each = [
        model.test_on_batch(tokens[i : i + 1], tags[i : i + 1])
        for i in range(8)
    ]
    np.testing.assert_allclose(shown, np.mean(each), rtol=1e-5)


@pytest.mark.parametrize("mode", MODES)
def test_batch_without_examples_shows_nothing_of_its_padding(mode: Any):
    model = build.compiled(
        optimizer=still(), run_eagerly=False, metrics=["accuracy"], **mode
    )
    full = build.padded(X[:8], Y[:8])
    empty = full._replace(padding=tf.ones([16], tf.bool))
    both = tf.data.Dataset.from_tensors(full).concatenate(
        tf.data.Dataset.from_tensors(empty)
    )
    shown = model.fit(both, verbose=0).history
    true = model.evaluate(X[:8], Y[:8], verbose=0, return_dict=True)
    assert_same({k: v[0] for k, v in shown.items()}, true)


class LossTracker(keras.Model):
    """Counts in its own metrics what its loss sees, as Keras' guides do."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = layers.Dense(3)
        self.seen = keras.metrics.Mean(name="seen")

    def call(self, x: Any) -> Any:
        return self.dense(x)

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> Any:
        loss = keras.ops.mean(keras.ops.square(y_pred))
        self.seen.update_state(loss)
        return loss


def test_means_that_the_loss_updates_count_real_rows():
    model = build.compiled(LossTracker(), still(), run_eagerly=False)
    shown, true = shown_and_true(model, X, Y)
    np.testing.assert_allclose(shown["seen"], true["loss"], rtol=1e-5)
    np.testing.assert_allclose(shown["loss"], true["loss"], rtol=1e-5)


def test_evaluation_of_sampled_batches_leaves_padding_out():
    model = build.compiled(optimizer=still(), metrics=["accuracy"])
    plan = model.optimizer.plan
    found = model.evaluate(
        plan.batches(X, Y, seed=6), verbose=0, return_dict=True
    )
    x, y, _ = rows_of(plan.batches(X, Y, seed=6))
    true = model.evaluate(x, y, verbose=0, return_dict=True, batch_size=128)
    np.testing.assert_allclose(found["accuracy"], true["accuracy"], rtol=1e-5)


@pytest.mark.xla
def test_evaluation_of_sampled_batches_is_refused_under_xla():
    model = build.compiled(
        optimizer=build.sgd(), run_eagerly=False, jit_compile=True
    )
    with pytest.raises(ValueError, match="Pass the arrays themselves"):
        model.evaluate(model.optimizer.plan.batches(X, Y), verbose=0)


def test_training_metrics_of_private_data_leave_weights_alone():
    # Same weights whatever is shown.
    plain = build.compiled(optimizer=build.sgd())
    shows = build.compiled(optimizer=build.sgd(), metrics=["accuracy"])
    build.assign(shows, build.values(plain))
    plain.train_on_batch(X[:8], Y[:8])
    shows.train_on_batch(X[:8], Y[:8])
    np.testing.assert_array_equal(build.flat(plain), build.flat(shows))
    assert isinstance(shows, dpa.DPSequential)
