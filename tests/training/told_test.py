"""What somebody who errs is told, before anything has changed."""

import logging
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_dpadaptive as dpa
from tests.training import build

X, Y = build.data(32)


@pytest.fixture(scope="module")
def model() -> Any:
    return build.compiled(optimizer=build.sgd())


def says(model: Any, fit: Any, *parts: str) -> None:
    """Asserts that `fit` raises with these parts, and changes nothing."""
    before = build.state(model)
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        fit()
    for part in parts:
        assert part in str(caught.value)
    assert build.unchanged(model, before)
    assert model.optimizer.noise_step == model.ledger.updates


@pytest.mark.parametrize("rows", [8, 31])
def test_arrays_that_are_not_the_plans_data(model: Any, rows: int):
    says(
        model,
        lambda: model.fit(X[:rows], Y[:rows], verbose=0),
        f"{rows} rows",
        "num_examples=32",
    )


def test_rows_that_a_validation_split_takes_out(model: Any):
    says(
        model,
        lambda: model.fit(X, Y, validation_split=0.25, verbose=0),
        "24 rows after validation_split=0.25",
    )


def test_no_targets(model: Any):
    batches = model.optimizer.plan.batches
    for fit in (
        lambda: model.fit(batches(X), verbose=0),
        lambda: model.fit(batches((X, X)), verbose=0),
        lambda: model.fit(X, verbose=0),
        lambda: model.train_on_batch(X[:8]),
    ):
        says(model, fit, "y=None", "plan.batches(x, y)")


def test_weights_of_another_length(model: Any):
    weight = np.ones(7, np.float32)
    says(
        model,
        lambda: model.train_on_batch(X[:8], Y[:8], weight),
        "`sample_weight`",
        "[7, 8] rows",
    )
    says(
        model,
        lambda: model.fit(X, Y, sample_weight=weight, verbose=0),
        "[7, 32] rows",
    )


def test_classes_that_are_not_numbers(model: Any):
    says(
        model,
        lambda: model.fit(X, Y, class_weight={"a": 1.0}, verbose=0),
        "class_weight={'a': 1.0}",
    )


@pytest.mark.parametrize("eager", [True, False])
def test_batches_of_a_dataset_that_are_too_large(eager: bool):
    model = build.compiled(optimizer=build.sgd(), run_eagerly=eager)
    rows = tf.data.Dataset.from_tensor_slices((X, Y)).repeat(2).batch(64)
    says(
        model,
        lambda: model.fit(rows, verbose=0),
        f"fixed shape of {model.optimizer.plan.max_batch_size} rows",
    )


@pytest.mark.filterwarnings("ignore:`shuffle=True` was passed")
def test_a_model_that_was_not_privatized(model: Any):
    plain = build.mlp()
    plain.compile(keras.optimizers.SGD(), build.labels_loss())
    batches = model.optimizer.plan.batches(X, Y)
    with pytest.raises(ValueError, match=r"tf_dpadaptive\.privatize\(model\)"):
        plain.fit(batches, verbose=0)
    with pytest.raises(ValueError, match="`fit` and `evaluate`"):
        model.predict(batches, verbose=0)


def test_other_data_are_spoken_of_once(caplog: pytest.LogCaptureFixture):
    def lines() -> int:
        return caplog.text.count("SAMPLING NOT VERIFIED")

    model = build.compiled(optimizer=build.sgd())
    with caplog.at_level(logging.WARNING, "tf_dpadaptive"):
        model.fit(model.optimizer.plan.batches(X, Y), verbose=0)
        assert lines() == 0
        model.fit(X, Y, verbose=0)
        assert lines() == 1
        model.train_on_batch(X[:8], Y[:8])
        assert lines() == 1


def test_a_fit_inside_of_a_fit(model: Any):
    class Nested(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            rows = tf.data.Dataset.from_tensors((X[:8], Y[:8])).repeat(9)
            self.model.fit(rows, verbose=0)

    batches = model.optimizer.plan.batches(X, Y)
    before = build.state(model)
    with pytest.raises(RuntimeError, match="inside of a running `fit`"):
        model.fit(batches, callbacks=[Nested()], verbose=0)
    assert build.unchanged(model, before)
    model.fit(batches, verbose=0)
    assert model.ledger.verified


def test_data_that_are_no_arrays_of_rows(model: Any):
    ragged = tf.ragged.constant([[1.0], [2.0, 3.0]])
    says(model, lambda: model.fit(ragged, Y[:2]), "pad ragged rows")
    says(model, lambda: model.train_on_batch({}, Y[:8]), "of type dict")


def test_a_weights_file_holds_no_ledger(
    tmp_path: Any, caplog: pytest.LogCaptureFixture
):
    def adam() -> Any:
        return dpa.optimizers.DPAdam(0.1, 1.0, build.plan(), seed=1)

    model = build.compiled(optimizer=adam())
    model.train_on_batch(X[:8], Y[:8])
    model.save_weights(tmp_path / "m.weights.h5")
    other = build.compiled(optimizer=adam())
    with (
        caplog.at_level(logging.WARNING, "tf_dpadaptive"),
        pytest.raises(ValueError, match=r"Save the model as \.keras"),
    ):
        other.load_weights(tmp_path / "m.weights.h5")
    assert "holds no ledger" in caplog.text
