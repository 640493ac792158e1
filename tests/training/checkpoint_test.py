"""The only resumable form, and the secrets that no other file may hold."""

import copy
import os
import pickle
import stat
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import tf_dpadaptive as dpa
from tests.training import build

X, Y = build.data(32)


def model_of(
    seed: int | None = None,
    plan: Any = None,
    optimizer: Any = None,
    model: Any = None,
    **arguments: Any,
) -> Any:
    if optimizer is None:
        plan = build.plan(1.0, num_steps=20) if plan is None else plan
        optimizer = dpa.optimizers.DPAdam(0.05, build.CLIP, plan, seed=seed)
    arguments.setdefault("run_eagerly", False)
    return build.compiled(model, optimizer, **arguments)


def dropout_model() -> Any:
    return keras.Sequential(
        [
            keras.Input((4,)),
            layers.Dense(5, activation="tanh"),
            layers.Dropout(0.3, seed=7),
            layers.Dense(3),
        ]
    )


def train(model: Any, updates: int, seed: int | None = None) -> None:
    plan = model.optimizer.plan
    model.fit(plan.batches(X, Y, steps=updates, seed=seed), verbose=0)


class ResumeTest:
    @pytest.mark.parametrize(
        "make",
        [
            lambda: None,
            lambda: dpa.optimizers.DPPostProcessing(
                keras.optimizers.Adam(0.05),
                build.CLIP,
                build.plan(1.0, num_steps=20),
                seed=3,
            ),
        ],
        ids=["DPAdam", "DPPostProcessing"],
    )
    def test_seeded_run_goes_on_bit_for_bit(self, make: Any, tmp_path: Path):
        def fresh() -> Any:
            return model_of(3, optimizer=make(), model=dropout_model())

        keras.utils.set_random_seed(1)
        unbroken = fresh()
        start = build.values(unbroken)
        train(unbroken, 3, seed=5)
        train(unbroken, 3, seed=5)

        keras.utils.set_random_seed(1)
        first = fresh()
        build.assign(first, start)
        train(first, 3, seed=5)
        # A callback has changed the rate: that is no other optimizer.
        first.optimizer.learning_rate = 0.05
        dpa.checkpoint.save(first, tmp_path / "run", extra={"epoch": 3})
        keras.utils.set_random_seed(2)
        second = fresh()
        assert dpa.checkpoint.restore(second, tmp_path / "run") == {"epoch": 3}
        train(second, 3, seed=5)

        np.testing.assert_array_equal(build.flat(second), build.flat(unbroken))
        assert second.ledger.updates == 6
        assert len(second.ledger.runs) == 1
        assert second.ledger.verified
        assert second.epsilon() == unbroken.epsilon()
        assert second.optimizer.noise_step == 6

    def test_changed_learning_rate_is_resumed(self, tmp_path: Path):
        def fresh() -> Any:
            inner = keras.optimizers.Adam(0.05)
            plan = build.plan(1.0, num_steps=20)
            return model_of(
                optimizer=dpa.optimizers.DPPostProcessing(inner, 0.5, plan)
            )

        first = fresh()
        train(first, 1)
        first.optimizer.learning_rate = 0.001
        dpa.checkpoint.save(first, tmp_path / "run")
        second = fresh()
        dpa.checkpoint.restore(second, tmp_path / "run")
        assert float(second.optimizer.learning_rate) == pytest.approx(0.001)

    def test_two_runs_from_one_checkpoint_draw_different_noise(
        self, tmp_path: Path
    ):
        plan = build.plan(1e3, num_steps=20)
        first = model_of(plan=plan, optimizer=build.sgd(1e3, num_steps=20))
        first.optimizer = dpa.optimizers.DPSGD(1.0, build.CLIP, plan)
        first.compile(first.optimizer, build.labels_loss())
        train(first, 2)
        dpa.checkpoint.save(first, tmp_path / "run")
        updates = []
        for _ in range(2):
            fork = model_of(
                optimizer=dpa.optimizers.DPSGD(1.0, build.CLIP, plan)
            )
            dpa.checkpoint.restore(fork, tmp_path / "run")
            np.testing.assert_array_equal(build.flat(fork), build.flat(first))
            updates.append(build.taken(fork, lambda f=fork: train(f, 1)))
        updates.append(build.taken(first, lambda: train(first, 1)))
        # Noise of 62.5 each: no two are alike, nor opposite.
        correlations = np.corrcoef(updates) - np.eye(3)
        # 43 values: 0.75 is five standard errors.
        assert np.abs(correlations).max() < 0.75
        for one, other in ((0, 1), (0, 2), (1, 2)):
            assert np.std(updates[one] - updates[other]) > 40

    def test_order_of_sampling_is_resumed(self, tmp_path: Path):
        plan = dpa.PrivacyPlan(0.0, 2, num_examples=8, sampling="shuffled")

        def fresh() -> Any:
            return build.compiled(
                keras.Sequential(
                    [keras.Input((8,)), layers.Dense(1, use_bias=False)]
                ),
                dpa.optimizers.DPSGD(1.0, 1.0, copy.copy(plan)),
                loss=lambda y, p: p[:, 0],
            )

        def rows(model: Any) -> list[int]:
            batches = model.optimizer.plan.batches(
                np.eye(8, dtype="float32"), np.zeros(8), steps=2
            )
            update = build.taken(model, lambda: model.fit(batches, verbose=0))
            return list(np.flatnonzero(update > 0.1))

        first = fresh()
        seen = rows(first)
        dpa.checkpoint.save(first, tmp_path / "run")
        second = fresh()
        dpa.checkpoint.restore(second, tmp_path / "run")
        assert sorted(seen + rows(second)) == list(range(8))

    def test_half_precision_weights_come_back(self, tmp_path: Path):
        def fresh() -> Any:
            return model_of(
                model=keras.Sequential(
                    [keras.Input((4,)), layers.Dense(3, dtype="bfloat16")]
                )
            )

        first = fresh()
        train(first, 1)
        dpa.checkpoint.save(first, tmp_path / "run")
        second = fresh()
        dpa.checkpoint.restore(second, tmp_path / "run")
        np.testing.assert_array_equal(build.flat(second), build.flat(first))

    def test_ledger_of_a_longer_run_is_not_forgotten(self, tmp_path: Path):
        model = model_of()
        train(model, 2)
        dpa.checkpoint.save(model, tmp_path / "run")
        train(model, 3)
        dpa.checkpoint.restore(model, tmp_path / "run")
        assert int(model.optimizer.iterations) == 2
        # Five of the branch that was left, two of the run that goes on: both
        # may have been released.
        assert sorted(r.updates for r in model.ledger.runs) == [2, 5]

    def test_a_branch_as_long_as_the_checkpoint_is_not_forgotten(
        self, tmp_path: Path
    ):
        model = model_of()
        train(model, 2)
        dpa.checkpoint.save(model, tmp_path / "early")
        train(model, 2)
        dpa.checkpoint.save(model, tmp_path / "late")
        other = model_of()
        dpa.checkpoint.restore(other, tmp_path / "early")
        train(other, 2)  # not the updates that `late` knows
        dpa.checkpoint.restore(other, tmp_path / "late")
        assert [r.updates for r in other.ledger.runs] == [4, 4]
        # The unbroken run has no branch.
        dpa.checkpoint.restore(model, tmp_path / "late")
        assert [r.updates for r in model.ledger.runs] == [4]


class RefusalTest:
    """What does not belong to the run raises, and changes nothing."""

    @pytest.fixture(scope="class")
    @staticmethod
    def path(tmp_path_factory: Any) -> Path:
        path = tmp_path_factory.mktemp("checkpoints") / "run"
        model = model_of()
        train(model, 2)
        dpa.checkpoint.save(model, path)
        return path

    OTHERS: dict[str, Any] = {
        "optimizer": lambda: model_of(
            optimizer=dpa.optimizers.DPSGD(
                0.05, build.CLIP, build.plan(1.0, num_steps=20)
            )
        ),
        "plan": lambda: model_of(plan=build.plan(2.0, num_steps=20)),
        "clip": lambda: model_of(
            optimizer=dpa.optimizers.DPAdam(
                0.05, 9.0, build.plan(1.0, num_steps=20)
            )
        ),
        "argument": lambda: model_of(
            optimizer=dpa.optimizers.DPAdam(
                0.05,
                build.CLIP,
                build.plan(1.0, num_steps=20),
                beta_1=0.5,
            )
        ),
        "seed": lambda: model_of(seed=3),
        "size": lambda: model_of(
            model=keras.Sequential(
                [
                    keras.Input((4,)),
                    layers.Dense(6, activation="tanh"),
                    layers.Dense(3),
                ]
            )
        ),
        "number of layers": lambda: model_of(
            model=keras.Sequential([keras.Input((4,)), layers.Dense(3)])
        ),
        "kinds of variables": lambda: model_of(
            model=keras.Sequential(
                [
                    keras.Input((4,)),
                    layers.EinsumDense("ab,bc->ac", 5, bias_axes="c"),
                    layers.Dense(3),
                ]
            )
        ),
        "frozen layers": lambda: model_of(model=half_frozen()),
    }

    @pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
    def test_checkpoint_of_another_run(self, path: Path, other: Any):
        model = other()
        model.optimizer.build(model.trainable_variables)
        before = build.state(model)
        secret = model.optimizer._keys.eras.numpy()
        state = [v.numpy() for v in model.optimizer.variables]
        with pytest.raises(ValueError, match=r"checkpoint|Build the same"):
            dpa.checkpoint.restore(model, path)
        assert build.unchanged(model, before)
        np.testing.assert_array_equal(
            model.optimizer._keys.eras.numpy(), secret
        )
        for now, then in zip(model.optimizer.variables, state, strict=True):
            np.testing.assert_array_equal(now.numpy(), then)

    def test_only_what_differs_is_said(self, path: Path):
        plan = build.plan(0.5, num_steps=20)
        optimizer = dpa.optimizers.DPAdam(0.1, 0.75, plan, seed=1)
        with pytest.raises(ValueError, match="another optimizer") as caught:
            dpa.checkpoint.restore(model_of(optimizer=optimizer), path)
        assert "l2_norm_clip was " in str(caught.value)
        assert " and is 0.75" in str(caught.value)
        assert "beta_1" not in str(caught.value)

    def test_models_without_a_run(self, path: Path, tmp_path: Path):
        plain = build.mlp()
        plain.compile("sgd", "mse")
        for model in (plain, dpa.privatize(build.mlp())):
            with pytest.raises(ValueError, match="privatized and compiled"):
                dpa.checkpoint.save(model, tmp_path / "no")
            with pytest.raises(ValueError, match="privatized and compiled"):
                dpa.checkpoint.restore(model, path)

    def test_other_files(self, tmp_path: Path):
        file = tmp_path / "text"
        file.write_text("no checkpoint")
        model = model_of()
        with pytest.raises(ValueError, match="not a checkpoint"):
            dpa.checkpoint.restore(model, file)
        with pytest.raises(FileNotFoundError):
            dpa.checkpoint.restore(model, tmp_path / "absent")


def half_frozen() -> Any:
    model = build.mlp()
    model.get_layer("hidden").trainable = False
    return model


class CheckpointFileTest:
    def test_is_for_its_owner_alone(self, tmp_path: Path):
        model = model_of()
        path = tmp_path / "folder" / "run"
        old = os.umask(0)
        try:
            dpa.checkpoint.save(model, path)
        finally:
            os.umask(old)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        path.chmod(0o644)
        dpa.checkpoint.save(model, path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert [p.name for p in path.parent.iterdir()] == ["run"]

    def test_is_replaced_in_one_step(self, tmp_path: Path, monkeypatch: Any):
        model = model_of()
        path = tmp_path / "run"
        dpa.checkpoint.save(model, path)
        whole = path.read_bytes()

        def fail(*_: Any) -> None:
            raise OSError("disk full")

        for point in ("fsync", "replace"):
            monkeypatch.setattr(os, point, fail)
            with pytest.raises(OSError, match="disk full"):
                dpa.checkpoint.save(model, path)
            monkeypatch.undo()
            assert path.read_bytes() == whole
            assert [p.name for p in tmp_path.iterdir()] == ["run"]

    def test_runs_no_code_when_read(self, tmp_path: Path):
        bad = tmp_path / "run"
        np.savez(bad, meta=np.array([print], dtype=object))
        os.replace(f"{bad}.npz", bad)
        with pytest.raises(ValueError, match="not a checkpoint"):
            dpa.checkpoint.restore(model_of(), bad)


class SecretsTest:
    """The noise secret is looked for, byte by byte, in all that is released."""

    @pytest.fixture(scope="class")
    @staticmethod
    def model() -> Any:
        model = model_of()
        train(model, 2)
        return model

    @pytest.fixture
    @staticmethod
    def words(model: Any) -> list[bytes]:
        """The secret's words as bytes, hexadecimal and decimal digits."""
        eras = model.optimizer._keys.eras.numpy()
        words = [np.int64(word) for word in eras[:, 1:].ravel()]
        assert len(words) == 4
        forms = []
        for word in words:
            forms += [
                word.tobytes(),
                word.tobytes()[::-1],
                str(word).encode(),
                str(word.astype(np.uint64)).encode(),
                word.tobytes().hex().encode(),
            ]
            # Half a word by itself would be seen as well.
            forms += [word.tobytes()[:4], word.tobytes()[4:]]
        return forms

    def assert_absent(self, folder: Path, words: list[bytes]) -> None:
        files = [p for p in folder.rglob("*") if p.is_file()]
        assert files
        for file in files:
            content = file.read_bytes()
            if content[:2] == b"PK":
                import zipfile

                with zipfile.ZipFile(file) as archive:
                    content += b"".join(
                        archive.read(name) for name in archive.namelist()
                    )
            assert not [w for w in words if w in content], file.name

    def test_the_search_finds_it_where_it_is(
        self, model: Any, words: list[bytes], tmp_path: Path
    ):
        dpa.checkpoint.save(model, tmp_path / "run")
        with pytest.raises(AssertionError, match="run"):
            self.assert_absent(tmp_path, words)

    @pytest.mark.filterwarnings("ignore")  # Keras' own, of old formats
    @pytest.mark.parametrize(
        "name", ["m.keras", "m.h5", "m.weights.h5", "export", "saved_model"]
    )
    def test_not_in_files_of_the_model(
        self, model: Any, words: list[bytes], tmp_path: Path, name: str
    ):
        path = tmp_path / name
        if name == "m.weights.h5":
            model.save_weights(path)
        elif name == "export":
            model.export(path, verbose=False)
        elif name == "saved_model":
            tf.saved_model.save(model, path)
        else:
            model.save(path)
        self.assert_absent(tmp_path, words)

    def test_not_in_tensorflow_checkpoints(
        self, model: Any, words: list[bytes], tmp_path: Path
    ):
        optimizer = model.optimizer
        tf.train.Checkpoint(optimizer=optimizer).save(tmp_path / "o")
        tf.train.Checkpoint(model=model, optimizer=optimizer).save(
            tmp_path / "m"
        )
        self.assert_absent(tmp_path, words)

    def test_not_in_keras_callbacks(
        self, model: Any, words: list[bytes], tmp_path: Path
    ):
        kept = [
            keras.callbacks.ModelCheckpoint(tmp_path / "best.keras"),
            keras.callbacks.BackupAndRestore(
                tmp_path / "backup", delete_checkpoint=False
            ),
            keras.callbacks.CSVLogger(tmp_path / "log.csv"),
            dpa.callbacks.PrivacyBudget(),
        ]
        model.fit(X, Y, callbacks=kept, verbose=0)
        self.assert_absent(tmp_path, words)

    def test_not_in_configs(self, model: Any, words: list[bytes]):
        configs = [
            model.get_config(),
            model.get_compile_config(),
            model.optimizer.get_config(),
            keras.saving.serialize_keras_object(model),
            keras.saving.serialize_keras_object(model.optimizer),
            model.ledger.to_config(),
        ]
        text = repr(configs).encode()
        assert b"DPAdam" in text
        assert not [w for w in words if w in text]

    def test_not_in_pickles(self, model: Any, words: list[bytes]):
        for thing in (model, model.optimizer):
            content = pickle.dumps(thing)
            assert not [w for w in words if w in content]
        with pytest.raises(TypeError, match="can't be copied or pickled"):
            pickle.dumps(model.optimizer._keys)

    def test_not_in_keras_variable_lists(self, model: Any):
        step, eras = model.optimizer._keys.step, model.optimizer._keys.eras
        for variable in [*model.variables, *model.optimizer.variables]:
            assert variable.value is not step
            assert variable.value is not eras

    def test_copies_do_not_share_it(self, model: Any):
        copied = copy.deepcopy(model)
        mine = model.optimizer._keys.eras.numpy()
        other = copied.optimizer._keys.eras.numpy()
        assert not set(mine[:, 1:].ravel()) & set(other[:, 1:].ravel())
        assert copied.optimizer.ledger.updates == model.ledger.updates
        for copier in (copy.copy, copy.deepcopy):
            with pytest.raises(TypeError, match="can't be copied"):
                copier(model.optimizer._keys)

    @pytest.mark.filterwarnings("ignore")  # Keras' own, of old formats
    def test_saving_as_h5_does_not_lose_the_ledger_of_later_files(
        self, model: Any, tmp_path: Path
    ):
        # Keras takes the optimizer out of its own configuration there.
        model.save(tmp_path / "m.h5")
        model.save(tmp_path / "m.keras")
        for name in ("m.h5", "m.keras"):
            loaded = keras.saving.load_model(tmp_path / name)
            assert loaded.optimizer.ledger.updates == model.ledger.updates

    def test_seeds_do_not_reach_released_files(self, tmp_path: Path):
        model = model_of(seed=918273645)
        model.save(tmp_path / "m.keras")
        self.assert_absent(tmp_path, [b"918273645"])
        assert "seed" not in model.optimizer.get_config()
