"""What really ran is booked, and no update passes the plan."""

import math
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_dpadaptive as dpa
from tests.training import build

X, Y = build.data(32)  # four updates a pass
MODES = {
    "eager": {"run_eagerly": True},
    "graph": {"jit_compile": False},
    "steps_per_execution": {"jit_compile": False, "steps_per_execution": 3},
    "xla": {"jit_compile": True},
    "xla, steps_per_execution": {"jit_compile": True, "steps_per_execution": 3},
}
EACH_MODE = pytest.mark.parametrize(
    "mode",
    [
        "eager",
        "graph",
        "steps_per_execution",
        pytest.param("xla", marks=pytest.mark.xla),
        pytest.param("xla, steps_per_execution", marks=pytest.mark.xla),
    ],
)


def model_of(plan: Any, **arguments: Any) -> Any:
    arguments.setdefault("run_eagerly", False)
    optimizer = dpa.optimizers.DPSGD(0.1, build.CLIP, plan)
    return build.compiled(optimizer=optimizer, **arguments)


def spend(model: Any, updates: int) -> None:
    model.fit(model.optimizer.plan.batches(X, Y, steps=updates), verbose=0)


class StopTest:
    """A plan of six updates: a pass of four, and one that ends inside."""

    @EACH_MODE
    def test_fit_beyond_the_plan_is_refused_before_it_begins(self, mode: str):
        plan = build.plan(1.0, num_steps=6)
        model = model_of(plan, **MODES[mode])
        before = build.state(model)
        for data in ((plan.batches(X, Y), None), (X, Y)):
            with pytest.raises(dpa.BudgetExhausted, match="8 updates"):
                model.fit(*data, epochs=2, verbose=0)
        assert build.unchanged(model, before)

    @EACH_MODE
    def test_unknown_length_stops_at_the_last_update(self, mode: str):
        plan = build.plan(1.0, num_steps=6)
        model = model_of(plan, **MODES[mode])
        rows = tf.data.Dataset.from_tensors((X[:8], Y[:8])).repeat()
        with pytest.raises(dpa.BudgetExhausted, match="num_steps=6"):
            model.fit(rows.take(9).filter(lambda *_: True), verbose=0)
        assert model.optimizer.noise_step <= 6
        assert model.ledger.updates == model.optimizer.noise_step

    @EACH_MODE
    def test_privacy_budget_stops_cleanly_at_the_last_update(self, mode: str):
        plan = build.plan(1.0, num_steps=6)
        model = model_of(plan, **MODES[mode])
        history = model.fit(
            plan.batches(X, Y),
            epochs=9,
            callbacks=[dpa.callbacks.PrivacyBudget()],
            verbose=0,
        ).history
        assert model.optimizer.noise_step == model.ledger.updates == 6
        assert int(model.optimizer.iterations) == 6
        assert len(history["loss"]) == 2
        assert history["epsilon"][-1] == pytest.approx(plan.epsilon())
        # And what is spent stays spent, with the callback and without.
        before = build.state(model)
        again = model.fit(
            plan.batches(X, Y),
            callbacks=[dpa.callbacks.PrivacyBudget()],
            verbose=0,
        )
        assert again.history == {}
        with pytest.raises(dpa.BudgetExhausted, match="6 are taken"):
            model.fit(plan.batches(X, Y), verbose=0)
        with pytest.raises(dpa.BudgetExhausted, match="6 are taken"):
            model.train_on_batch(X[:8], Y[:8])
        assert build.unchanged(model, before)

    def test_a_plan_used_up_exactly_is_no_error(self):
        plan = build.plan(1.0, num_steps=8)
        model = model_of(plan, **MODES["steps_per_execution"])
        model.fit(plan.batches(X, Y), epochs=2, verbose=0)
        assert model.ledger.updates == 8
        assert model.epsilon() == pytest.approx(plan.epsilon())

    @EACH_MODE
    def test_train_on_batch_stops(self, mode: str):
        plan = build.plan(1.0, num_steps=2)
        model = model_of(plan, **MODES[mode])
        for _ in range(2):
            model.train_on_batch(X[:8], Y[:8])
        before = build.state(model)
        with pytest.raises(dpa.BudgetExhausted):
            model.train_on_batch(X[:8], Y[:8])
        assert build.unchanged(model, before)
        assert model.optimizer.noise_step == 2

    def test_a_renewed_optimizer_does_not_renew_the_budget(self):
        plan = build.plan(1.0, num_steps=6)
        model = model_of(plan)
        spend(model, 4)
        model.compile(
            dpa.optimizers.DPAdam(
                0.1, build.CLIP, build.plan(1.0, num_steps=6)
            ),
            build.labels_loss(),
        )
        with pytest.raises(dpa.BudgetExhausted, match="4 are taken; 4 updates"):
            spend(model, 4)
        spend(model, 2)
        assert model.ledger.remaining(plan) == 0


class BookingTest:
    def test_epsilon_is_that_of_the_updates_that_ran(self):
        plan = build.plan(1.0)
        model = model_of(plan)
        assert model.epsilon() == 0.0
        assert "No private update" in model.privacy_statement()
        spend(model, 3)
        assert model.epsilon() == pytest.approx(plan.epsilon(3))
        assert model.optimizer.epsilon() == model.epsilon()
        spend(model, 2)
        assert model.epsilon() == pytest.approx(plan.epsilon(5))
        assert model.epsilon(1e-2) == pytest.approx(plan.epsilon(5, 1e-2))
        statement = model.privacy_statement()
        assert "after 5 updates" in statement
        assert "NOT VERIFIED" not in statement

    def test_other_data_are_booked_as_not_verified(self):
        plan = build.plan(1.0)
        model = model_of(plan)
        spend(model, 1)
        assert model.ledger.verified
        model.fit(X, Y, verbose=0)
        model.train_on_batch(X[:8], Y[:8])
        model.fit(plan.batches(X, Y).map(lambda batch: batch), verbose=0)
        (run,) = model.ledger.runs
        assert (run.verified, run.unverified) == (1, 4 + 1 + 4)
        assert (
            "SAMPLING NOT VERIFIED for 9 updates" in model.privacy_statement()
        )
        with pytest.warns(UserWarning, match="SAMPLING NOT VERIFIED"):
            epsilon = model.epsilon()
        assert epsilon == pytest.approx(plan.epsilon(10))

    def test_update_within_a_fit_by_hand_is_not_verified(self):
        plan = build.plan(1.0)
        model = model_of(plan)

        class Extra(keras.callbacks.Callback):
            def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
                if batch == 1:
                    self.model.train_on_batch(X[:8], Y[:8])

        model.fit(plan.batches(X, Y), callbacks=[Extra()], verbose=0)
        (run,) = model.ledger.runs
        assert (run.verified, run.unverified) == (4, 1)

    def test_interrupted_fit_books_what_ran(self):
        plan = build.plan(1.0)
        model = model_of(plan)

        class Stop(keras.callbacks.Callback):
            def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
                if batch == 2:
                    raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            model.fit(plan.batches(X, Y), callbacks=[Stop()], verbose=0)
        assert model.ledger.updates == model.optimizer.noise_step == 3
        spend(model, 1)
        (run,) = model.ledger.runs
        assert (run.verified, run.unverified) == (4, 0)

    def test_update_that_fails_half_way_is_booked(self):
        # The noise is drawn, and who knows what was written.
        model = model_of(build.plan(1.0), run_eagerly=True)
        model.train_on_batch(X[:8], Y[:8])

        def fail(*_: Any) -> None:
            raise RuntimeError("half way")

        model.optimizer.rule = fail
        with pytest.raises(RuntimeError, match="half way"):
            model.train_on_batch(X[:8], Y[:8])
        assert model.ledger.updates == model.optimizer.noise_step == 2

    def test_recompile_and_another_optimizer_keep_the_ledger(self):
        plan = build.plan(1.0)
        model = model_of(plan)
        spend(model, 2)
        model.compile(model.optimizer, build.labels_loss())
        spend(model, 1)
        assert len(model.ledger.runs) == 1
        other = build.plan(2.0, 16, num_examples=32)
        model.compile(
            dpa.optimizers.DPAdam(0.1, build.CLIP, other), build.labels_loss()
        )
        assert model.epsilon() == pytest.approx(plan.epsilon(3))
        spend(model, 2)
        assert [run.updates for run in model.ledger.runs] == [3, 2]
        assert [run.optimizer for run in model.ledger.runs] == [
            "DPSGD",
            "DPAdam",
        ]
        both = model.epsilon()
        assert both > plan.epsilon(3)
        assert both > other.epsilon(2)
        assert model.optimizer.epsilon() == both
        dpa.privatize(model, clipping="sequential")
        assert model.epsilon() == both

    def test_no_noise_is_never_private(self):
        model = model_of(build.plan(0.0))
        spend(model, 1)
        assert math.isinf(model.epsilon())
        assert "NOT PRIVATE" in model.privacy_statement()
        assert "no noise was added" in model.privacy_statement()

    def test_evaluate_and_predict_are_not_booked(self):
        model = model_of(build.plan(1.0))
        model.evaluate(X, Y, verbose=0)
        model.predict(X, verbose=0)
        model.test_on_batch(X, Y)
        assert model.ledger.updates == 0
        assert model.optimizer.noise_step == 0


class UnknownPastTest:
    """Optimizer state without a ledger must not go on under a used plan."""

    def test_weights_file_with_optimizer_state(self, tmp_path: Any):
        plan = build.plan(1.0, num_steps=8)
        one = model_of(plan)
        spend(one, 3)
        one.save_weights(tmp_path / "m.weights.h5")
        other = model_of(plan)
        other.optimizer.build(other.trainable_variables)
        other.load_weights(tmp_path / "m.weights.h5")
        before = build.state(other)
        for train in (
            lambda: spend(other, 1),
            lambda: other.train_on_batch(X[:8], Y[:8]),
        ):
            with pytest.raises(ValueError, match=r"3 step\(s\) of which"):
                train()
        assert build.unchanged(other, before)

    def test_compiling_again_does_not_hide_it(self, tmp_path: Any):
        plan = build.plan(1.0, num_steps=20)
        model = model_of(plan)
        spend(model, 5)
        optimizer = build.sgd(1.0, num_steps=20)
        for _ in range(2):
            model.compile(optimizer, build.labels_loss(), run_eagerly=True)
            if not int(optimizer.iterations):
                spend(model, 1)
            # From outside: the ledger holds six updates, five of another.
            zeros = {i: tf.zeros(v.shape) for i, v in enumerate(model.weights)}
            optimizer.release(zeros)
            with pytest.raises(ValueError, match=r"step\(s\) of which"):
                model.epsilon()

    def test_keras_backup_and_restore(self, tmp_path: Any):
        plan = build.plan(1.0)

        class Stop(keras.callbacks.Callback):
            def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
                if epoch == 1:
                    raise KeyboardInterrupt

        def backup() -> Any:
            return keras.callbacks.BackupAndRestore(tmp_path / "backup")

        one = model_of(plan)
        with pytest.raises(KeyboardInterrupt):
            one.fit(
                plan.batches(X, Y),
                epochs=2,
                callbacks=[backup(), Stop()],
                verbose=0,
            )
        other = model_of(plan)
        other.optimizer.build(other.trainable_variables)
        with pytest.raises(ValueError, match=r"4 step\(s\) of which"):
            other.fit(
                plan.batches(X, Y), epochs=2, callbacks=[backup()], verbose=0
            )
        assert other.ledger.updates == 0

    def test_tensorflow_checkpoint(self, tmp_path: Any):
        plan = build.plan(1.0)
        one = model_of(plan)
        spend(one, 2)
        path = tf.train.Checkpoint(model=one, optimizer=one.optimizer).save(
            tmp_path / "c"
        )
        other = model_of(plan)
        other.optimizer.build(other.trainable_variables)
        tf.train.Checkpoint(model=other, optimizer=other.optimizer).restore(
            path
        )
        with pytest.raises(ValueError, match=r"2 step\(s\) of which"):
            spend(other, 1)


class PlanTest:
    """Bad input is refused before the first step, and nothing is changed."""

    @pytest.fixture
    @staticmethod
    def model() -> Any:
        return model_of(build.plan(1.0, num_steps=8), run_eagerly=True)

    def test_batches_of_another_plan(self, model: Any):
        before = build.state(model)
        other = build.plan(2.0, num_steps=8)
        with pytest.raises(ValueError, match="another plan"):
            model.fit(other.batches(X, Y), verbose=0)
        assert build.unchanged(model, before)

    def test_batch_larger_than_the_fixed_shape(self, model: Any):
        before = build.state(model)
        limit = model.optimizer.plan.max_batch_size
        assert limit < 32
        whole = tf.data.Dataset.from_tensors((X, Y))
        for train in (
            lambda: model.train_on_batch(X, Y),
            lambda: model.fit(X, Y, batch_size=32, verbose=0),
            lambda: model.fit(whole, verbose=0),
        ):
            with pytest.raises(
                ValueError, match=f"32 rows.*fixed shape of {limit}"
            ):
                train()
        assert build.unchanged(model, before)

    # Not generators under XLA, which knows no assertions; ε minds no size.
    @pytest.mark.parametrize(
        ("mode", "kind"),
        [
            ("eager", "dataset"),
            ("eager", "generator"),
            ("graph", "dataset"),
            ("graph", "generator"),
            pytest.param("xla", "dataset", marks=pytest.mark.xla),
        ],
    )
    def test_batch_of_unknown_size_larger_than_the_fixed_shape(
        self, mode: str, kind: str
    ):
        model = model_of(build.plan(1.0), **MODES[mode])
        before = build.state(model)
        large = (np.repeat(X, 2, 0), np.repeat(Y, 2, 0))
        rows: Any = (part for part in [large, large])
        if kind == "dataset":
            rows = tf.data.Dataset.from_generator(
                lambda: iter([large]),
                output_signature=(
                    tf.TensorSpec([None, 4], tf.float32),
                    tf.TensorSpec([None], tf.int32),
                ),
            )
        with pytest.raises(Exception, match="larger than the plan"):
            model.fit(rows, verbose=0, shuffle=False)
        assert build.unchanged(model, before)
        assert model.optimizer.noise_step == 0

    def test_other_sizes_warn_with_both_numbers(self, model: Any):
        rows = tf.data.Dataset.from_tensors((X[:6], Y[:6]))
        for train in (
            lambda: model.train_on_batch(X[:6], Y[:6]),
            lambda: model.fit(X, Y, batch_size=6, steps_per_epoch=1, verbose=0),
            lambda: model.fit(rows, verbose=0),
        ):
            with pytest.warns(UserWarning, match="6 rows.*batch_size=8"):
                train()
        assert model.ledger.updates == 3
        assert not model.ledger.verified

    def test_length_other_than_the_plans(self, model: Any):
        before = build.state(model)
        with pytest.raises(ValueError, match="num_examples=32"):
            model.fit(model.optimizer.plan.batches(X[:31], Y[:31]), verbose=0)
        assert build.unchanged(model, before)

    @pytest.mark.parametrize("eager", [True, False])
    @pytest.mark.parametrize(
        "labels",
        [np.zeros((32, 2), np.int32), np.zeros((32, 3, 3), np.float32)],
        ids=lambda labels: str(labels.shape),
    )
    def test_labels_of_the_wrong_shape(self, labels: Any, eager: bool):
        model = model_of(build.plan(1.0), run_eagerly=eager)
        before = build.state(model)
        for train in (
            lambda: model.train_on_batch(X[:8], labels[:8]),
            lambda: model.fit(X, labels, verbose=0),
            lambda: model.fit(
                model.optimizer.plan.batches(X, labels), verbose=0
            ),
        ):
            with pytest.raises(ValueError, match="shape"):
                train()
        assert build.unchanged(model, before)
        assert model.optimizer.noise_step == 0

    @pytest.mark.parametrize(
        "fields",
        [
            {"sigma": -1.0},
            {"sigma": math.nan},
            {"sigma": math.inf},
            {"batch": 0},
            {"batch": -8},
            {"batch": 64, "num_examples": 32},
            {"delta": 0.0},
            {"delta": 1.0},
            {"num_steps": 0},
        ],
        ids=str,
    )
    def test_numbers_of_a_plan(self, fields: Any):
        with pytest.raises(ValueError, match="Received"):
            build.plan(**fields)

    @pytest.mark.parametrize("clip", [-1.0, 0.0, math.nan, math.inf])
    def test_clip_norm(self, clip: float):
        with pytest.raises(ValueError, match="l2_norm_clip"):
            dpa.optimizers.DPSGD(0.1, clip, build.plan())

    def test_training_before_compile(self):
        model = dpa.privatize(build.mlp())
        for train in (
            lambda: model.fit(X, Y, verbose=0),
            lambda: model.train_on_batch(X, Y),
        ):
            with pytest.raises(ValueError, match="compile"):
                train()
