"""A privatized model is used as a Keras model: fit, evaluate, predict, …"""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import tf_dpadaptive as dpa
from tests.training import build

X, Y = build.data(32)


@pytest.fixture(scope="module")
def model() -> Any:
    """A model in graph mode, shared by tests that do not mind its weights."""
    return build.compiled(
        optimizer=build.sgd(), run_eagerly=False, metrics=["accuracy"]
    )


class FitTest:
    def test_learns_predicts_and_evaluates(self):
        rng = np.random.default_rng(0)
        y = rng.integers(0, 3, 96)
        x = (np.eye(3)[y] + 0.2 * rng.standard_normal((96, 3))).astype(
            "float32"
        )
        plan = build.plan(0.3, 32, num_examples=96, num_steps=60)
        model = build.compiled(
            build.mlp(3),
            dpa.optimizers.DPAdam(0.1, 1.0, plan, seed=2),
            run_eagerly=False,
            metrics=["accuracy"],
        )
        history = model.fit(
            plan.batches(x, y, seed=1),
            epochs=15,
            validation_data=(x, y),
            verbose=0,
        ).history
        assert history["loss"][-1] < 0.5 * history["loss"][0]
        assert history["val_accuracy"][-1] > 0.9
        predicted = model.predict(x, verbose=0)
        assert predicted.shape == (96, 3)
        loss, accuracy = model.evaluate(x, y, verbose=0)
        assert accuracy == np.mean(predicted.argmax(1) == y)
        np.testing.assert_allclose(loss, history["val_loss"][-1], rtol=1e-5)
        assert model.ledger.updates == 45

    def test_arrays_come_in_batches_of_b(self, model: Any):
        before = model.ledger.updates
        history = model.fit(X, Y, verbose=0, epochs=2)
        assert model.ledger.updates == before + 2 * 32 // build.ROWS
        assert set(history.history) == {"accuracy", "loss"}

    def test_validation_split_and_callbacks_work(self):
        model = build.compiled(
            optimizer=build.sgd(num_examples=24), metrics=["accuracy"]
        )
        seen = []

        class Watch(keras.callbacks.Callback):
            def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
                seen.append((batch, sorted(logs)))

        history = model.fit(
            X, Y, validation_split=0.25, callbacks=[Watch()], verbose=0
        ).history
        assert set(history) == {"accuracy", "loss", "val_accuracy", "val_loss"}
        assert [batch for batch, _ in seen] == [0, 1, 2]
        assert seen[0][1] == ["accuracy", "loss"]
        assert model.ledger.updates == 3

    def test_early_stopping_stops(self, model: Any):
        before = model.ledger.updates
        stop = keras.callbacks.EarlyStopping("loss", patience=0, mode="max")
        model.optimizer.learning_rate = 0.0
        try:
            model.fit(X, Y, epochs=9, callbacks=[stop], verbose=0)
        finally:
            model.optimizer.learning_rate = 1.0
        assert model.ledger.updates < before + 9 * 4

    def test_initial_epoch_and_steps_per_epoch_work(self, model: Any):
        before = model.ledger.updates
        batches = model.optimizer.plan.batches(X, Y)
        model.fit(
            batches, epochs=4, initial_epoch=2, steps_per_epoch=2, verbose=0
        )
        assert model.ledger.updates == before + 4

    def test_generators_and_sequences_are_taken(self, model: Any):
        class Rows(keras.utils.PyDataset):
            def __len__(self) -> int:
                return 4

            def __getitem__(self, index: int) -> Any:
                rows = slice(8 * index, 8 * index + 8)
                return X[rows], Y[rows]

        before = model.ledger.updates
        model.fit(Rows(), verbose=0, shuffle=False)
        generator = ((X[:8], Y[:8]) for _ in range(3))
        model.fit(generator, steps_per_epoch=2, verbose=0, shuffle=False)
        assert model.ledger.updates == before + 6

    def test_positional_arguments_are_those_of_keras(self):
        model = build.compiled(optimizer=build.sgd(num_examples=16))
        history = model.fit(X, Y, 8, 1, 0, None, 0.5)
        assert "val_loss" in history.history
        assert model.ledger.updates == 2


class ScheduleTest:
    def test_schedules_move_the_learning_rate(self):
        schedule = keras.optimizers.schedules.PiecewiseConstantDecay(
            [1], [1.0, 0.25]
        )
        model = build.compiled(optimizer=build.sgd(rate=schedule))
        start = build.values(model)
        updates = []
        # Up to `iterations` ≤ 1 the first rate holds.
        for _ in range(3):
            build.assign(model, start)
            updates.append(
                build.taken(model, lambda: model.train_on_batch(X[:8], Y[:8]))
            )
        np.testing.assert_allclose(updates[1], updates[0], rtol=1e-5)
        np.testing.assert_allclose(
            updates[2], 0.25 * updates[0], rtol=1e-4, atol=1e-7
        )

    def test_scheduler_callback_moves_the_learning_rate(self):
        model = build.compiled(optimizer=build.sgd())
        change = keras.callbacks.LearningRateScheduler(lambda epoch: 0.5)
        model.fit(X, Y, callbacks=[change], verbose=0)
        assert float(model.optimizer.learning_rate) == 0.5

    def test_inner_optimizer_trains_at_its_own_rate(self):
        plan = build.plan()
        inner = keras.optimizers.SGD(0.5)
        model = build.compiled(
            optimizer=dpa.optimizers.DPPostProcessing(inner, build.CLIP, plan)
        )
        gradients = build.alone(model, X[:8], Y[:8])
        update = build.taken(model, lambda: model.train_on_batch(X[:8], Y[:8]))
        np.testing.assert_allclose(
            update, 0.5 * build.clipped_mean(gradients), rtol=1e-5, atol=1e-7
        )


class ClassWeightTest:
    """`class_weight` works, beside `sample_weight` and padding too."""

    WEIGHTS = {0: 0.25, 2: 3.0}

    @pytest.fixture(scope="class")
    @staticmethod
    def model() -> Any:
        return build.compiled(run_eagerly=False)

    @pytest.mark.parametrize("weighted", [False, True])
    def test_train_on_batch(self, model: Any, weighted: bool):
        x, y = X[:8], Y[:8]
        weight = np.linspace(0.5, 2, 8).astype("float32") if weighted else None
        table = np.array([0.25, 1.0, 3.0], np.float32)
        both = table[y] * (1.0 if weight is None else weight)
        expected = build.clipped_mean(build.alone(model, x, y, both))
        update = build.taken(
            model,
            lambda: model.train_on_batch(x, y, weight, self.WEIGHTS),
        )
        np.testing.assert_allclose(update, expected, rtol=1e-5, atol=1e-7)

    @pytest.mark.parametrize("weighted", [False, True])
    @pytest.mark.parametrize(
        "given", ["arrays", "one-hot", "dataset", "sampled"]
    )
    def test_fit(self, given: str, weighted: bool):
        # One update with all 8 rows, whatever order they come in.
        x, y = X[:8], Y[:8]
        weight = np.linspace(0.5, 2, 8).astype("float32") if weighted else None
        loss = None
        if given == "one-hot":
            y = np.eye(3, dtype=np.float32)[y]
            loss = keras.losses.CategoricalCrossentropy(from_logits=True)
        plan = build.plan(num_examples=8)
        model = build.compiled(
            optimizer=dpa.optimizers.DPSGD(1.0, build.CLIP, plan), loss=loss
        )
        table = np.array([0.25, 1.0, 3.0], np.float32)
        both = table[Y[:8]] * (1.0 if weight is None else weight)
        expected = build.clipped_mean(build.alone(model, x, y, both))
        data: dict[str, Any] = {"x": x, "y": y, "sample_weight": weight}
        parts = (x, y) if weight is None else (x, y, weight)
        if given == "dataset":
            data = {"x": tf.data.Dataset.from_tensors(parts), "shuffle": False}
        elif given == "sampled":
            data = {"x": plan.batches(*parts)}
        update = build.taken(
            model,
            lambda: model.fit(**data, class_weight=self.WEIGHTS, verbose=0),
        )
        np.testing.assert_allclose(update, expected, rtol=1e-5, atol=1e-7)
        assert model.ledger.verified is (given == "sampled")

    def test_labels_without_a_weight_count_one(self, model: Any):
        x, y = X[:8], np.full(8, 2, np.int32)
        start = build.values(model)
        one = build.taken(model, lambda: model.train_on_batch(x, y))
        build.assign(model, start)
        two = build.taken(
            model, lambda: model.train_on_batch(x, y, None, {0: 9.0, 1: 9.0})
        )
        np.testing.assert_allclose(one, two, rtol=1e-5, atol=1e-8)

    @pytest.mark.parametrize(
        ("y", "complaint"),
        [
            (None, "needs targets"),
            ({"a": Y[:8], "b": Y[:8]}, "single output"),
            (np.zeros((8, 2, 2)), "of shape"),
        ],
    )
    def test_targets_without_classes_are_refused(
        self, model: Any, y: Any, complaint: str
    ):
        before = build.state(model)
        with pytest.raises(ValueError, match=complaint):
            model.fit(X[:8], y, class_weight=self.WEIGHTS, verbose=0)
        assert build.unchanged(model, before)


class OrderTest:
    """The order of sampling belongs to the run of a model."""

    def plan(self) -> Any:
        return dpa.PrivacyPlan(
            0.0, 2, num_examples=8, num_steps=99, sampling="shuffled"
        )

    def identified(self, plan: Any) -> Any:
        """A model whose updates tell who took part."""
        return build.compiled(
            keras.Sequential(
                [keras.Input((8,)), layers.Dense(1, use_bias=False)]
            ),
            dpa.optimizers.DPSGD(1.0, 1.0, plan),
            loss=lambda y, p: p[:, 0],
        )

    def fit(self, model: Any, plan: Any, steps: int) -> list[tuple[int, ...]]:
        parts = []
        for _ in range(steps):
            update = build.taken(
                model,
                lambda: model.fit(
                    plan.batches(np.eye(8, dtype="float32"), np.zeros(8)),
                    steps_per_epoch=1,
                    verbose=0,
                ),
            )
            parts.append(tuple(np.flatnonzero(update > 0.1)))
        return parts

    def test_passes_and_calls_go_on_in_one_order(self):
        plan = self.plan()
        model = self.identified(plan)
        parts = self.fit(model, plan, 8)
        assert sorted(sum(parts[:4], ())) == list(range(8))
        assert parts[4:] == parts[:4]

    def test_equal_plan_made_anew_goes_on_in_the_order_of_the_run(self):
        plan = self.plan()
        model = self.identified(plan)
        first = self.fit(model, plan, 2)
        # By itself, another plan object begins another order.
        rest = self.fit(model, self.plan(), 2)
        assert sorted(sum(first + rest, ())) == list(range(8))

    def test_models_that_share_a_plan_do_not_push_each_other_on(self):
        plan = self.plan()
        one = self.identified(plan)
        other = self.identified(plan)
        parts = self.fit(one, plan, 2)
        self.fit(other, plan, 1)
        parts += self.fit(one, plan, 2)
        assert sorted(sum(parts, ())) == list(range(8))

    def test_batches_ahead_of_training_are_not_counted(self):
        plan = self.plan()
        model = self.identified(plan)
        parts = self.fit(model, plan, 1)
        for _ in plan.batches(np.eye(8), np.zeros(8)):
            pass  # somebody looks at the data
        parts += self.fit(model, plan, 3)
        assert sorted(sum(parts, ())) == list(range(8))


def test_frozen_layers_stay_and_thawed_ones_want_a_new_optimizer():
    model = build.compiled(build.mlp())
    hidden = model.get_layer("hidden")
    hidden.trainable = False
    model.compile(build.sgd(), loss=build.labels_loss(), run_eagerly=True)
    kept = hidden.kernel.numpy()
    model.train_on_batch(X[:8], Y[:8])
    np.testing.assert_array_equal(hidden.kernel.numpy(), kept)
    hidden.trainable = True
    with pytest.raises(ValueError, match="4 trainable variables"):
        model.train_on_batch(X[:8], Y[:8])
    model.compile(build.sgd(), loss=build.labels_loss(), run_eagerly=True)
    model.train_on_batch(X[:8], Y[:8])
    assert (hidden.kernel.numpy() != kept).any()


def test_user_compile_arguments_reach_keras():
    model = dpa.privatize(build.mlp())
    model.compile(
        build.sgd(),
        "mse",
        None,
        ["mae"],
        steps_per_execution=2,
        jit_compile=False,
    )
    assert model.steps_per_execution == 2
    assert model.jit_compile is False
