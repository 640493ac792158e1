"""ε while training, and runs that stop and go on."""

import re
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import tf_dpadaptive as dpa
from tests.training import build

X, Y = build.data(32)  # four updates a pass


def model_of(plan: Any, seed: int | None = None, **arguments: Any) -> Any:
    arguments.setdefault("run_eagerly", False)
    optimizer = dpa.optimizers.DPSGD(0.1, build.CLIP, plan, seed=seed)
    return build.compiled(optimizer=optimizer, **arguments)


class PrivacyBudgetTest:
    def test_epsilon_stands_in_logs_and_progress_bar(self, capsys: Any):
        plan = build.plan(1.0, num_steps=8)
        model = model_of(plan)
        seen = []

        class Watch(keras.callbacks.Callback):
            def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
                seen.append(dict(logs))

        history = model.fit(
            plan.batches(X, Y),
            epochs=2,
            callbacks=[dpa.callbacks.PrivacyBudget(), Watch()],
            verbose=2,
        ).history
        expected = [plan.epsilon(4), plan.epsilon(8)]
        np.testing.assert_allclose(history["epsilon"], expected)
        np.testing.assert_allclose([s["epsilon"] for s in seen], expected)
        shown = re.findall(r"epsilon: ([\d.]+)", capsys.readouterr().out)
        np.testing.assert_allclose(
            [float(s) for s in shown], expected, atol=1e-3
        )

    def test_delta_may_be_given(self):
        plan = build.plan(1.0, delta=None, num_steps=8)
        model = model_of(plan)
        with pytest.raises(ValueError, match="delta"):
            model.fit(
                plan.batches(X, Y),
                callbacks=[dpa.callbacks.PrivacyBudget()],
                verbose=0,
            )
        history = model.fit(
            plan.batches(X, Y),
            callbacks=[dpa.callbacks.PrivacyBudget(delta=1e-2)],
            verbose=0,
        ).history
        # The first fit was refused before it took an update.
        assert history["epsilon"] == [pytest.approx(plan.epsilon(4, 1e-2))]

    def test_stop_belongs_to_one_fit(self):
        # A later fit without the callback raises again.
        plan = build.plan(1.0, num_steps=5)
        model = model_of(plan)
        model.fit(
            plan.batches(X, Y),
            callbacks=dpa.callbacks.PrivacyBudget(),
            verbose=0,
        )
        with pytest.raises(dpa.BudgetExhausted, match="4 updates"):
            model.fit(plan.batches(X, Y), verbose=0)
        assert model.ledger.updates == 4

    def test_callback_list_is_looked_into(self):
        plan = build.plan(1.0, num_steps=5)
        model = model_of(plan)
        callbacks = keras.callbacks.CallbackList(
            [dpa.callbacks.PrivacyBudget()], add_history=True, model=model
        )
        model.fit(plan.batches(X, Y), epochs=3, callbacks=callbacks, verbose=0)
        assert model.ledger.updates == 5

    def test_unverified_updates_count(self):
        plan = build.plan(1.0, num_steps=5)
        model = model_of(plan)
        model.train_on_batch(X[:8], Y[:8])
        model.fit(
            X, Y, epochs=3, callbacks=[dpa.callbacks.PrivacyBudget()], verbose=0
        )
        assert model.ledger.updates == 5


class ResumableTest:
    def run(self, model: Any, path: Path, *others: Any, epochs: int = 4) -> Any:
        return model.fit(
            model.optimizer.plan.batches(X, Y, seed=2),
            epochs=epochs,
            callbacks=[dpa.callbacks.Resumable(path), *others],
            verbose=0,
        )

    def test_interrupted_run_equals_an_unbroken_one(self, tmp_path: Path):
        plan = build.plan(1.0, num_steps=16)

        class Stop(keras.callbacks.Callback):
            def on_train_batch_begin(self, batch: int, logs: Any = None):
                if self.model.ledger.updates == 10:  # inside a pass
                    raise KeyboardInterrupt

        unbroken = model_of(plan, seed=1)
        start = build.values(unbroken)
        self.run(unbroken, tmp_path / "a")

        first = model_of(plan, seed=1)
        build.assign(first, start)
        with pytest.raises(KeyboardInterrupt):
            self.run(first, tmp_path / "b", Stop())
        second = model_of(plan, seed=1)
        history = self.run(
            second, tmp_path / "b", dpa.callbacks.PrivacyBudget()
        )
        np.testing.assert_array_equal(build.flat(second), build.flat(unbroken))
        assert history.epoch == [2, 3]
        assert second.ledger.updates == 16
        assert second.epsilon() == pytest.approx(plan.epsilon())
        # And once more: nothing is left to do.
        third = model_of(plan, seed=1)
        self.run(third, tmp_path / "b")
        np.testing.assert_array_equal(build.flat(third), build.flat(unbroken))

    def test_every_few_epochs(self, tmp_path: Path):
        model = model_of(build.plan(1.0))
        saved = []

        class Watch(keras.callbacks.Callback):
            def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
                saved.append((tmp_path / "run").exists())

        model.fit(
            X,
            Y,
            epochs=3,
            callbacks=[dpa.callbacks.Resumable(tmp_path / "run", 2), Watch()],
            verbose=0,
        )
        assert saved == [False, True, True]

    def test_next_fit_begins_where_it_is_told_to(self, tmp_path: Path):
        model = model_of(build.plan(1.0))
        self.run(model, tmp_path / "run", epochs=2)
        assert model.fit(X, Y, epochs=2, verbose=0).epoch == [0, 1]

    def test_budget_is_checked_after_the_restore(self, tmp_path: Path):
        plan = build.plan(1.0, num_steps=8)
        first = model_of(plan)
        self.run(first, tmp_path / "run", epochs=2)
        second = model_of(plan)
        with pytest.raises(dpa.BudgetExhausted, match="8 are taken"):
            self.run(second, tmp_path / "run", epochs=3)
        assert second.ledger.updates == 8

    @pytest.mark.parametrize("every", [0, -1, 1.5])
    def test_every_is_checked(self, every: Any):
        with pytest.raises(ValueError, match="`every`"):
            dpa.callbacks.Resumable("run", every)


@pytest.mark.parametrize("delta", [0.0, 1.0, -1.0])
def test_delta_is_checked(delta: float):
    with pytest.raises(ValueError, match="`delta`"):
        dpa.callbacks.PrivacyBudget(delta)
