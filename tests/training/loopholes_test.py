"""Ways round the guarantee that a review found, each shut."""

import os
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_dpadaptive as dpa
from tests.training.build import (
    compiled,
    data,
    flat,
    labels_loss,
    plan,
    sgd,
)
from tf_dpadaptive.noise.keys import SecretKeys

pytestmark = pytest.mark.filterwarnings(
    "ignore:SAMPLING NOT VERIFIED", "ignore:Batches of"
)


def _batches(plan: dpa.PrivacyPlan, steps: int = 1) -> tf.data.Dataset:
    x, y = data(plan.num_examples)
    return plan.batches(x, y, steps=steps)


class ReplacedOptimizerTest:
    def test_the_old_step_does_not_run_under_a_new_optimizer(self) -> None:
        model = compiled(optimizer=sgd(1.0), run_eagerly=False)
        model.fit(_batches(model.optimizer.plan), verbose=0)
        before, old = flat(model), model.optimizer
        model.optimizer = sgd(1.0)
        with pytest.raises(ValueError, match="replaced after `compile`"):
            model.fit(_batches(model.optimizer.plan), verbose=0)
        np.testing.assert_array_equal(flat(model), before)
        assert old.noise_step == model.ledger.updates == 1

    def test_a_train_function_kept_over_a_compile_does_not_run(self) -> None:
        model = compiled(optimizer=sgd(1.0), run_eagerly=False)
        model.fit(_batches(model.optimizer.plan), verbose=0)
        stale, before = model.train_function, flat(model)
        model.compile(sgd(1.0), loss=labels_loss())
        with pytest.raises(RuntimeError, match="another optimizer"):
            stale(iter(_batches(model.optimizer.plan)))
        np.testing.assert_array_equal(flat(model), before)


class FixedArgumentsTest:
    @pytest.mark.parametrize("name", ["plan", "l2_norm_clip"])
    def test_what_the_noise_was_computed_from_is_fixed(self, name: str) -> None:
        optimizer = sgd(1.0)
        with pytest.raises(AttributeError, match=f"`{name}`.*is fixed"):
            setattr(optimizer, name, plan(0.1) if name == "plan" else 10.0)

    def test_so_are_the_constants_of_the_moments(self) -> None:
        kind = dpa.optimizers.DPAdamJointMoments
        optimizer = kind(0.1, 1.0, plan(1.0))
        for name in ("scale", "joint", "lam"):
            with pytest.raises(AttributeError, match="is fixed"):
                setattr(optimizer, name, 1e-3)


class SamplingPlaceTest:
    """A fixed order goes on with its run, whatever is done to the model."""

    fields = {"sampling": "shuffled", "num_steps": 100}

    def test_privatizing_twice_does_not_begin_the_order_again(self) -> None:
        model = compiled(optimizer=sgd(1.0, **self.fields))
        optimizer = model.optimizer
        for updates in range(1, 4):
            model.fit(_batches(optimizer.plan), verbose=0)
            assert optimizer.sampling.order["position"] == updates
            dpa.privatize(model)
            model.compile(optimizer, loss=labels_loss(), run_eagerly=True)

    def test_nor_does_a_second_model_over_the_same_layers(self) -> None:
        model = compiled(optimizer=sgd(1.0, **self.fields))
        optimizer = model.optimizer
        model.fit(_batches(optimizer.plan), verbose=0)
        other = dpa.privatize(keras.Model(model.inputs, model.outputs))
        other.compile(optimizer, loss=labels_loss(), run_eagerly=True)
        other.fit(_batches(optimizer.plan), verbose=0)
        assert optimizer.sampling.order["position"] == 2

    def test_branches_from_a_checkpoint_are_all_charged(
        self, tmp_path: Path
    ) -> None:
        model = compiled(optimizer=sgd(1.0, **self.fields))
        path = tmp_path / "run.dpa"
        model.fit(_batches(model.optimizer.plan), verbose=0)
        dpa.checkpoint.save(model, path)
        for _ in range(2):
            model.fit(_batches(model.optimizer.plan, 2), verbose=0)
            dpa.checkpoint.restore(model, path)
        model.fit(_batches(model.optimizer.plan, 2), verbose=0)
        assert sorted(r.updates for r in model.ledger.runs) == [3, 3, 3]
        one = model.optimizer.plan.epsilon(3)
        assert model.epsilon() > one


class ReadsMetric(keras.Model):
    """Its loss depends on what earlier batches did to a metric."""

    def __init__(self) -> None:
        super().__init__()
        self.head = keras.layers.Dense(3)
        self.seen = keras.metrics.Mean(name="seen")

    def call(self, x: Any) -> Any:
        return self.head(x)

    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        loss = super().compute_loss(*args, **kwargs)
        return loss * (1.0 + self.seen.result())

    def compute_metrics(
        self, x: Any, y: Any, y_pred: Any, **kwargs: Any
    ) -> Any:
        self.seen.update_state(keras.ops.mean(x))
        return self.get_metrics_result()


class KeepsOutputs(keras.layers.Layer):
    """Keeps what it saw in a Python list."""

    def __init__(self) -> None:
        super().__init__()
        self.bank: list[Any] = [1.0]

    def call(self, x: Any) -> Any:
        x = x * self.bank[-1]
        self.bank = [keras.ops.sign(keras.ops.sum(x))]
        return x


class RawStateTest:
    def test_a_loss_that_reads_a_metric_is_refused(self) -> None:
        model = compiled(ReadsMetric())
        x, y = data()
        with pytest.raises(ValueError, match="reads metric variable"):
            model.fit(x, y, verbose=0)

    def test_python_state_passes_from_no_example_to_the_next(self) -> None:
        layer = KeepsOutputs()
        model = compiled(
            keras.Sequential([keras.Input((4,)), layer, keras.layers.Dense(3)]),
            clipping="sequential",
        )
        x, y = data()
        try:
            model.fit(x, y, verbose=0)
        except Exception:  # a symbol of another trace: TensorFlow refuses it
            return
        assert not any(
            tf.is_tensor(v) and hasattr(v, "numpy") for v in layer.bank
        )

    def test_a_regularizer_that_looks_at_data_is_refused(self) -> None:
        x, y = data()
        secret = tf.constant(x)

        def looks(w: Any) -> Any:
            return tf.reduce_mean(tf.matmul(secret, w))

        model = compiled(
            keras.Sequential(
                [
                    keras.Input((4,)),
                    keras.layers.Dense(3, kernel_regularizer=looks),
                ]
            )
        )
        before = flat(model)
        with pytest.raises(ValueError, match="function of the weights alone"):
            model.fit(x, y, verbose=0)
        np.testing.assert_array_equal(flat(model), before)

    def test_a_regularizer_without_gradient_counts_for_nothing(self) -> None:
        model = compiled(
            keras.Sequential(
                [
                    keras.Input((4,)),
                    keras.layers.Dense(
                        3, kernel_regularizer=lambda w: tf.constant(1.0)
                    ),
                ]
            )
        )
        x, y = data()
        model.fit(x, y, verbose=0)
        assert model.ledger.updates == 1


class SaidTest:
    def test_epsilon_of_unverified_sampling_warns(self) -> None:
        model = compiled(optimizer=sgd(1.0, num_examples=8))
        x, y = data()
        model.fit(x, y, verbose=0)
        with pytest.warns(UserWarning, match="SAMPLING NOT VERIFIED"):
            model.epsilon()
        with pytest.warns(UserWarning, match="SAMPLING NOT VERIFIED"):
            model.optimizer.epsilon()

    def test_logs_name_unverified_sampling(self) -> None:
        model = compiled(optimizer=sgd(1.0, num_examples=8))
        x, y = data()
        history = model.fit(
            x, y, verbose=0, callbacks=[dpa.callbacks.PrivacyBudget()]
        ).history
        assert "epsilon" not in history
        assert history["epsilon_sampling_not_verified"][0] > 0

    def test_a_seeded_run_says_so(self) -> None:
        model = compiled(optimizer=sgd(1.0))
        model.fit(_batches(model.optimizer.plan), verbose=0)
        assert "SEEDED" in model.privacy_statement()

    def test_budget_asks_for_delta_before_training(self) -> None:
        model = compiled(optimizer=sgd(1.0, delta=None))
        before = flat(model)
        with pytest.raises(ValueError, match="delta"):
            model.fit(
                _batches(model.optimizer.plan),
                verbose=0,
                callbacks=[dpa.callbacks.PrivacyBudget()],
            )
        np.testing.assert_array_equal(flat(model), before)

    def test_two_adjacencies_in_one_model_are_refused(self) -> None:
        model = compiled(optimizer=sgd(1.0))
        model.fit(_batches(model.optimizer.plan), verbose=0)
        for other in (
            sgd(1.0, adjacency="replace", sampling="in_order"),
            sgd(1.0, adjacency="add_or_remove"),
        ):
            with pytest.raises(ValueError, match="adjacency"):
                model.compile(other, loss=labels_loss())
        assert model.epsilon() > 0


class OddInputTest:
    def test_no_data(self) -> None:
        with pytest.raises(ValueError, match="x=None"):
            compiled().fit()

    def test_no_rows(self) -> None:
        x, y = data()
        with pytest.raises(ValueError, match="at least one"):
            compiled().fit(x[:0], y[:0])

    def test_rows_without_targets(self) -> None:
        x, y = data()
        model = compiled()
        with pytest.raises(ValueError, match="same number of rows"):
            model.train_on_batch(x, y[:3])
        assert model.ledger.updates == 0

    def test_map_fn_that_keeps_state_is_refused(self) -> None:
        kept = tf.Variable(0.0)

        def adds(x: Any, y: Any) -> Any:
            return x + kept.assign_add(tf.reduce_sum(x)), y

        some = plan(1.0)
        x, y = data(some.num_examples)
        with pytest.raises(ValueError, match="map_fn"):
            some.batches(x, y, map_fn=adds)


def test_an_interrupted_resume_does_not_skip_the_next_fit(
    tmp_path: Path,
) -> None:
    path = tmp_path / "run.dpa"
    model = compiled(optimizer=sgd(1.0))
    batches = _batches(model.optimizer.plan)
    resumable = dpa.callbacks.Resumable(path)
    model.fit(batches, verbose=0, epochs=2, callbacks=[resumable])

    class Breaks(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        model.fit(batches, verbose=0, epochs=3, callbacks=[resumable, Breaks()])
    assert model.fit(batches, verbose=0, epochs=1).epoch == [0]


def test_forked_processes_draw_other_noise() -> None:
    keys = SecretKeys()
    here = keys.eras.numpy().copy()
    keys._process = os.getpid() + 1  # what a child would find
    keys.renew_after_fork()
    assert not np.array_equal(keys.eras.numpy()[-1], here[-1])
    again = keys.eras.numpy().copy()
    keys.renew_after_fork()
    np.testing.assert_array_equal(keys.eras.numpy(), again)


def test_outputs_need_a_row_an_example() -> None:
    inputs = keras.Input((4,))
    hidden = keras.layers.Dense(3)(inputs)
    model = compiled(
        keras.Model(inputs, keras.ops.sum(hidden)), loss=lambda y, p: p
    )
    x, y = data()
    with pytest.raises(ValueError, match="one row an example"):
        model.fit(x, y, verbose=0)


@pytest.mark.parametrize("way", ["release", "update"])
@pytest.mark.parametrize("again", [False, True])
def test_no_epsilon_of_what_the_ledger_does_not_know(
    way: str, again: bool
) -> None:
    model = compiled(optimizer=sgd(1.0))
    model.fit(_batches(model.optimizer.plan), verbose=0)
    assert np.isfinite(model.epsilon())
    if again:  # steps of another optimizer do not hide those of this one
        model.compile(sgd(1.0), loss=labels_loss(), run_eagerly=True)
        model.optimizer.build(model.trainable_variables)
        assert np.isfinite(model.epsilon())
    zeros = {
        i: tf.zeros(v.shape) for i, v in enumerate(model.trainable_variables)
    }
    released = model.optimizer.release(zeros)
    if way == "update":
        model.optimizer.update(released, model.optimizer.geometry(), {})
    with pytest.raises(ValueError, match=r"1 step\(s\) of which the ledger"):
        model.epsilon()
    with pytest.raises(ValueError, match="No ε can be stated"):
        model.privacy_statement()
