"""A privatized model saves as its original class, and copies as one."""

import copy
import pickle
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

import tf_dpadaptive as dpa
from tests.training import build
from tf_dpadaptive.training.private_class import private_class

X, Y = build.data(32)


@keras.saving.register_keras_serializable(package="tests")
class Custom(keras.Model):
    """A registered subclassed model."""

    def __init__(self, units: int = 5, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.units = units
        self.hidden = layers.Dense(units, activation="tanh")
        self.head = layers.Dense(3)

    def call(self, x: Any) -> Any:
        return self.head(self.hidden(x))

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "units": self.units}


@keras.saving.register_keras_serializable(package="tests")
class Private(dpa.DPModel):
    """A registered model that is private by itself."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.dense = layers.Dense(3)

    def call(self, x: Any) -> Any:
        return self.dense(x)


def functional() -> Any:
    inputs = keras.Input((4,))
    hidden = layers.Dense(5, activation="tanh")(inputs)
    return keras.Model(inputs, layers.Dense(3)(hidden))


KINDS = {
    "Sequential": (build.mlp, keras.Sequential),
    "Functional": (functional, keras.Model),
    "subclass": (Custom, Custom),
}
EACH_KIND = pytest.mark.parametrize(("make", "kind"), KINDS.values(), ids=KINDS)


def trained(model: Any) -> Any:
    plan = build.plan(1.0, num_steps=20)
    model = build.compiled(
        model,
        dpa.optimizers.DPAdam(0.05, build.CLIP, plan),
        metrics=["accuracy"],
    )
    model.fit(plan.batches(X, Y, steps=3), verbose=0)
    return model


class SaveTest:
    @EACH_KIND
    def test_loads_as_original_class_that_does_not_train_in_the_clear(
        self, make: Any, kind: type, tmp_path: Path
    ):
        model = trained(make())
        model.save(tmp_path / "m.keras")
        loaded = keras.saving.load_model(tmp_path / "m.keras")
        assert isinstance(loaded, kind)
        assert not isinstance(loaded, dpa.DPModel)
        assert type(loaded).__name__ == type(model).__name__
        np.testing.assert_array_equal(loaded.predict(X), model.predict(X))
        assert loaded.evaluate(X, Y, verbose=0) == pytest.approx(
            model.evaluate(X, Y, verbose=0)
        )
        start = build.values(loaded)
        with pytest.raises(RuntimeError, match="privatize"):
            loaded.fit(X, Y, verbose=0)
        for now, then in zip(build.values(loaded), start, strict=True):
            np.testing.assert_array_equal(now, then)

    @EACH_KIND
    @pytest.mark.parametrize("optimizer", ["loaded", "new"])
    def test_goes_on_with_its_ledger_once_privatized(
        self, make: Any, kind: type, optimizer: str, tmp_path: Path
    ):
        model = trained(make())
        model.save(tmp_path / "m.keras")
        loaded = keras.saving.load_model(tmp_path / "m.keras")
        assert loaded.optimizer.epsilon() == model.epsilon()
        dpa.privatize(loaded)
        assert loaded.ledger.updates == 3
        plan = loaded.optimizer.plan
        chosen = loaded.optimizer
        if optimizer == "new":
            chosen = dpa.optimizers.DPAdam(0.05, build.CLIP, plan)
        loaded.compile(chosen, build.labels_loss(), run_eagerly=True)
        loaded.fit(plan.batches(X, Y, steps=2), verbose=0)
        assert loaded.ledger.updates == 5
        assert loaded.ledger.remaining(plan) == 15
        assert loaded.epsilon() == pytest.approx(plan.epsilon(5))

    def test_loaded_correlated_noise_does_not_go_on(self, tmp_path: Path):
        if not hasattr(dpa.noise, "TreeAggregation"):
            pytest.skip("no correlated noise yet")
        plan = build.plan(
            1.0,
            num_steps=20,
            sampling="shuffled",
            noise=dpa.noise.TreeAggregation(),
        )
        model = build.compiled(
            optimizer=dpa.optimizers.DPSGD(0.1, build.CLIP, plan)
        )
        model.fit(plan.batches(X, Y, steps=2), verbose=0)
        model.save(tmp_path / "m.keras")
        loaded = dpa.privatize(keras.saving.load_model(tmp_path / "m.keras"))
        loaded.compile(loaded.optimizer, build.labels_loss(), run_eagerly=True)
        before = build.state(loaded)
        with pytest.raises(ValueError, match="correlated noise can't go on"):
            loaded.fit(plan.batches(X, Y, steps=2), verbose=0)
        assert build.unchanged(loaded, before)

    def test_private_subclass_loads_compiled_with_its_ledger(
        self, tmp_path: Path
    ):
        model = trained(Private())
        model.save(tmp_path / "m.keras")
        loaded = keras.saving.load_model(tmp_path / "m.keras")
        assert type(loaded) is Private
        assert loaded.ledger.updates == 3
        plan = loaded.optimizer.plan
        loaded.fit(plan.batches(X, Y, steps=2), verbose=0)
        assert loaded.ledger.updates == 5

    @pytest.mark.slow
    def test_plain_keras_loads_it_without_the_package(self, tmp_path: Path):
        for make in (build.mlp, functional):
            model = trained(make())
            path = tmp_path / f"{make.__name__}.keras"
            model.save(path)
            np.save(f"{path}.npy", model.predict(X, verbose=0))
        np.save(tmp_path / "x.npy", X)
        script = f"""
            import pathlib, sys
            import keras
            import numpy as np
            x = np.load({str(tmp_path / "x.npy")!r})
            for path in sorted(pathlib.Path({str(tmp_path)!r}).glob("*.keras")):
                model = keras.saving.load_model(path, compile=False)
                expected = np.load(str(path) + ".npy")
                found = model.predict(x, verbose=0)
                np.testing.assert_allclose(found, expected, 1e-4, 1e-6)
                model.compile("adam", "mse")
                model.fit(x, expected, verbose=0)
                print("loaded", path.name, type(model).__name__)
            assert "tf_dpadaptive" not in sys.modules
        """
        output = build.output_of(script, cwd=tmp_path)
        assert "loaded functional.keras Functional" in output
        assert "loaded mlp.keras Sequential" in output


class CopyTest:
    @EACH_KIND
    @pytest.mark.parametrize("how", ["pickle", "deepcopy"])
    def test_copy_is_plain_guarded_and_keeps_the_ledger(
        self, make: Any, kind: type, how: str
    ):
        model = trained(make())
        copied = (
            copy.deepcopy(model)
            if how == "deepcopy"
            else pickle.loads(pickle.dumps(model))
        )
        assert not isinstance(copied, dpa.DPModel)
        assert copied.optimizer.ledger.updates == 3
        assert copied.optimizer.run_id != model.optimizer.run_id
        with pytest.raises(RuntimeError, match="privatize"):
            copied.fit(X, Y, verbose=0)
        np.testing.assert_array_equal(build.flat(copied), build.flat(model))

    def test_clone_is_a_plain_model(self):
        model = trained(build.mlp())
        cloned = keras.models.clone_model(model)
        assert type(cloned) is keras.Sequential


class PrivateClassTest:
    def test_looks_like_the_original(self):
        made = private_class(Custom)
        assert made.__name__ == "Custom"
        assert made.__module__ == Custom.__module__
        assert made.__qualname__ == Custom.__qualname__
        assert keras.saving.get_registered_name(made) == "tests>Custom"
        assert issubclass(made, Custom)

    @pytest.mark.parametrize("make", [build.mlp, functional])
    def test_class_of_keras_is_saved_under_its_public_name(self, make: Any):
        plain = keras.saving.serialize_keras_object(make())
        private = keras.saving.serialize_keras_object(dpa.privatize(make()))
        for key in ("module", "class_name", "registered_name"):
            assert private[key] == plain[key]

    def test_is_made_once(self):
        assert private_class(Custom) is private_class(Custom)

    def test_original_class_stays_as_it_is(self):
        dpa.privatize(Custom())
        plain = Custom()
        plain.compile("sgd", build.labels_loss())
        plain.fit(X, Y, verbose=0)
        assert not hasattr(plain, "ledger")
