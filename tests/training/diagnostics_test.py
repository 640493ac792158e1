"""Diagnostics: opt-in, named `nonprivate/`, right, and kept nowhere."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_dpadaptive import PrivacyPlan, callbacks, optimizers, privatize

N, B, CLIP = 12, 4, 1.0
CLIPPED, NORM = "nonprivate/clip_fraction", "nonprivate/mean_norm"
LENGTHS = np.array([0.1, 0.5, 0.9, 2.0, 8.0, 0.2, 0.3, 3.0, 0.4, 0.7, 5.0, 0.6])


@keras.saving.register_keras_serializable(package="tests")
def output_itself(y_true, y_pred):
    """The loss w·x, whose gradient is x."""
    return y_pred


def model_and_data(clip=CLIP, plan=None, **compile_arguments):
    """A linear model whose example gradients have the norms LENGTHS."""
    plan = plan or PrivacyPlan(
        1.0,
        expected_batch_size=B,
        num_examples=N,
        num_steps=90,
        sampling="in_order",
    )
    linear = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
    model = privatize(keras.Sequential([keras.Input((2,)), linear]))
    model.compile(
        optimizers.DPSGD(0.1, clip, plan, seed=1),
        loss=output_itself,
        **compile_arguments,
    )
    angle = np.arange(N)
    x = LENGTHS[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    return model, plan.batches(x.astype("float32"), np.zeros((N, 1), "float32"))


@pytest.mark.parametrize(
    "mode",
    [
        {},
        {"run_eagerly": True},
        pytest.param({"jit_compile": True}, marks=pytest.mark.xla),
    ],
)
def test_they_are_the_share_clipped_and_the_mean_norm(mode):
    model, data = model_and_data(**mode)
    history = model.fit(
        data, epochs=2, verbose=0, callbacks=[callbacks.Diagnostics()]
    ).history
    # Three batches of four: each update counts alike.
    np.testing.assert_allclose(history[CLIPPED], 2 * [4 / 12], rtol=1e-6)
    np.testing.assert_allclose(history[NORM], 2 * [LENGTHS.mean()], rtol=1e-5)


def test_without_the_callback_nothing_is_shown():
    model, data = model_and_data()
    assert set(model.fit(data, verbose=0).history) == {"loss"}
    shown = model.fit(data, verbose=0, callbacks=[callbacks.Diagnostics()])
    assert set(shown.history) == {"loss", CLIPPED, NORM}
    # Nor in the next fit, nor in a batch.
    assert set(model.fit(data, verbose=0).history) == {"loss"}
    logs = model.train_on_batch(
        np.ones((B, 2)), np.zeros((B, 1)), return_dict=True
    )
    assert set(logs) == {"loss"}


def test_they_go_off_when_a_fit_is_broken_off():
    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            raise KeyboardInterrupt

    model, data = model_and_data()
    with pytest.raises(KeyboardInterrupt):
        model.fit(data, verbose=0, callbacks=[callbacks.Diagnostics(), Stop()])
    assert set(model.fit(data, verbose=0).history) == {"loss"}


def test_padding_and_several_steps_an_execution():
    plan = PrivacyPlan(
        1.0, expected_batch_size=B, num_examples=N, num_steps=90, delta=1e-2
    )
    model, data = model_and_data(clip=0.05, plan=plan, steps_per_execution=2)
    history = model.fit(
        data,
        epochs=1,
        steps_per_epoch=4,
        verbose=0,
        callbacks=[callbacks.Diagnostics()],
    ).history
    # All examples are longer than the clip norm, and padding is none.
    assert history[CLIPPED][0] == 1.0
    assert LENGTHS.min() <= history[NORM][0] <= LENGTHS.max()


def test_an_example_that_is_not_finite_counts_as_clipped():
    model, _ = model_and_data()
    x = np.array([[1e30, 0], [0.5, 0], [0, 0.3], [0, 0.1]], "float32")
    history = model.fit(
        tf.data.Dataset.from_tensors((x, np.zeros((4, 1)))),
        verbose=0,
        callbacks=[callbacks.Diagnostics()],
    ).history
    np.testing.assert_allclose(history[CLIPPED], [0.25])
    np.testing.assert_allclose(history[NORM], [0.3], rtol=1e-5)


def test_they_are_kept_in_no_variable(tmp_path):
    def variables(*used):
        model, data = model_and_data()
        model.fit(data, verbose=0, callbacks=list(used))
        model.save(tmp_path / "model.keras")
        every = [*model.variables, *model.optimizer.variables]
        every += model.metrics_variables
        return [v.numpy() for v in every]

    plain, diagnosed = variables(), variables(callbacks.Diagnostics())
    assert len(plain) == len(diagnosed)
    for one, other in zip(plain[1:], diagnosed[1:], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)
