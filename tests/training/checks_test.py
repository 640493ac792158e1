"""The guard, both ways: each way in is shut, says what to do, moves nothing."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import tf_dpadaptive as dpa
from tests.training import build
from tf_dpadaptive.training.checks import raise_all

X, Y = build.data()
GRADIENTS = [tf.ones([4, 5]), tf.ones([5]), tf.ones([5, 3]), tf.ones([3])]


@pytest.fixture(scope="module")
def trained() -> Any:
    """A model that has taken one update."""
    model = build.compiled(run_eagerly=False)
    model.train_on_batch(X, Y)
    return model


class RawGradientTest:
    """No raw gradient gets past a DP optimizer, before or after training."""

    ENTRIES: dict[str, Callable[[Any, Any], Any]] = {
        "apply": lambda o, v: o.apply(GRADIENTS, v),
        "apply, built": lambda o, v: o.apply(GRADIENTS),
        "apply_gradients": lambda o, v: o.apply_gradients(
            zip(GRADIENTS, v, strict=True)
        ),
        "stateless_apply": lambda o, v: o.stateless_apply(
            o.variables, GRADIENTS, v
        ),
        "update_step": lambda o, v: o.update_step(GRADIENTS[0], v[0], 1.0),
        "_backend_apply_gradients": lambda o, v: o._backend_apply_gradients(
            GRADIENTS, v
        ),
        "_backend_update_step": lambda o, v: o._backend_update_step(
            GRADIENTS, v, 1.0
        ),
        "in a graph": lambda o, v: tf.function(
            lambda: o.apply_gradients(zip(GRADIENTS, v, strict=True))
        )(),
        "under a LossScaleOptimizer": lambda o, v: (
            keras.optimizers.LossScaleOptimizer(o).apply(GRADIENTS, v)
        ),
    }

    @pytest.mark.parametrize("entry", ENTRIES.values(), ids=ENTRIES)
    def test_entry_is_shut(self, trained: Any, entry: Any):
        before = build.state(trained)
        variables = trained.trainable_variables
        with pytest.raises(RuntimeError, match="private step.*privatize"):
            entry(trained.optimizer, variables)
        assert build.unchanged(trained, before)

    @pytest.mark.parametrize("kind", ["DPAdam", "DPPostProcessing"])
    def test_every_optimizer_refuses(self, trained: Any, kind: str):
        first = {"DPPostProcessing": "sgd"}.get(kind, 0.1)
        optimizer = getattr(dpa.optimizers, kind)(first, 1.0, build.plan())
        with pytest.raises(RuntimeError, match="private step"):
            optimizer.apply(GRADIENTS, trained.trainable_variables)

    @pytest.mark.parametrize("eager", [True, False])
    def test_plain_model_with_a_private_optimizer_does_not_train(
        self, eager: bool
    ):
        model = build.mlp()
        model.compile(build.sgd(), build.labels_loss(), run_eagerly=eager)
        start = build.values(model)
        for train in (
            lambda: model.fit(X, Y, verbose=0),
            lambda: model.train_on_batch(X, Y),
        ):
            with pytest.raises(RuntimeError, match="privatize"):
                train()
        for now, then in zip(build.values(model), start, strict=True):
            np.testing.assert_array_equal(now, then)

    def test_custom_loop_with_a_private_optimizer_does_not_train(
        self, trained: Any
    ):
        before = build.state(trained)
        with tf.GradientTape() as tape:
            loss = trained.compute_loss(X, Y, trained(X, training=True))
        variables = trained.trainable_variables
        gradients = tape.gradient(loss, [v.value for v in variables])
        with pytest.raises(RuntimeError, match="private step"):
            trained.optimizer.apply(gradients, variables)
        assert build.unchanged(trained, before)

    def test_step_outside_of_fit_is_refused_since_nobody_would_book_it(
        self, trained: Any
    ):
        before = build.state(trained)
        with pytest.raises(RuntimeError, match="not be booked"):
            trained.train_step((X, Y))
        with pytest.raises(RuntimeError, match="not be booked"):
            tf.function(trained.train_step)((X, Y))
        assert build.unchanged(trained, before)


def refused(model: Any, complaint: str) -> None:
    """Both ways of training refuse, and nothing has changed."""
    before = build.state(model)
    for train in (
        lambda: model.train_on_batch(X, Y),
        lambda: model.fit(X, Y, verbose=0),
    ):
        with pytest.raises(ValueError, match=complaint):
            train()
    assert build.unchanged(model, before)


class PlainOptimizerTest:
    """A privatized model trains with nothing but a DP optimizer."""

    @pytest.mark.parametrize(
        "optimizer",
        [
            "adam",
            keras.optimizers.SGD(1.0),
            {"class_name": "sgd", "config": {}},
            None,
        ],
        ids=["name", "object", "config", "nothing"],
    )
    def test_compile_refuses_other_optimizers(self, optimizer: Any):
        model = dpa.privatize(build.mlp())
        with pytest.raises(ValueError, match="DP optimizers only"):
            model.compile(optimizer, build.labels_loss())

    @pytest.mark.parametrize("eager", [True, False])
    def test_optimizer_put_in_place_after_compile_is_found(self, eager: bool):
        model = build.compiled(run_eagerly=eager)
        model.train_on_batch(X, Y)
        model.optimizer = keras.optimizers.SGD(1.0)
        refused(model, "optimizer=SGD")

    def test_explicit_loss_scaling_is_refused(self):
        model = dpa.privatize(build.mlp())
        scaled = keras.optimizers.LossScaleOptimizer(build.sgd())
        with pytest.raises(ValueError, match="unscaled gradients"):
            model.compile(scaled, build.labels_loss())
        with pytest.raises(ValueError, match="auto_scale_loss"):
            model.compile(
                build.sgd(), build.labels_loss(), auto_scale_loss=True
            )

    @pytest.mark.parametrize(
        "name",
        [
            "clipnorm",
            "clipvalue",
            "global_clipnorm",
            "gradient_accumulation_steps",
            "loss_scale_factor",
        ],
    )
    def test_arguments_that_blur_the_guarantee_are_refused(self, name: str):
        with pytest.raises(ValueError, match=f"`{name}=2`"):
            dpa.optimizers.DPAdam(0.1, 1.0, build.plan(), **{name: 2})
        model = build.compiled()
        setattr(model.optimizer, name, 2)
        refused(model, f"`{name}=2`")

    def test_all_reasons_are_given_at_once(self):
        model = build.compiled()
        model.optimizer.clipnorm = 1.0
        model.optimizer.gradient_accumulation_steps = 4
        with pytest.raises(ValueError) as caught:  # noqa: PT011
            model.train_on_batch(X, Y)
        assert "clipnorm" in str(caught.value)
        assert "gradient_accumulation_steps" in str(caught.value)
        assert str(caught.value).count("\n  - ") == 2

    def test_cached_train_function_of_a_plain_model_is_dropped(self):
        model = build.mlp()
        model.compile(keras.optimizers.SGD(1.0), build.labels_loss())
        model.fit(X, Y, verbose=0)
        model.evaluate(X, Y, verbose=0)
        dpa.privatize(model)
        start = build.values(model)
        with pytest.raises(ValueError, match="compile"):
            model.fit(X, Y, verbose=0)
        model.compile(build.sgd(1e3, num_examples=8), build.labels_loss())
        update = build.taken(
            model, lambda: model.fit(X, Y, batch_size=8, verbose=0)
        )
        # Noise of 1000 · 0.5 / 8 = 62.5 on each weight.
        assert np.std(update) > 10
        assert model.ledger.updates == 1
        del start


class OwnStep(keras.Sequential):
    def train_step(self, data: Any) -> Any:
        return super().train_step(data)


class OwnStepAbove(OwnStep):
    pass


class CustomStepTest:
    @pytest.mark.parametrize("kind", [OwnStep, OwnStepAbove])
    def test_train_step_of_a_class_is_refused(self, kind: type):
        model = kind([keras.Input((4,)), layers.Dense(3)])
        with pytest.raises(ValueError, match=f"{kind.__name__} has its own"):
            dpa.privatize(model)
        assert type(model) is kind

    def test_train_step_of_a_private_subclass_is_refused(self):
        class Own(dpa.DPModel):
            def train_step(self, data: Any) -> Any:
                return keras.Model.train_step(self, data)

            def call(self, x: Any) -> Any:
                return x

        with pytest.raises(ValueError, match="Own has its own `train_step`"):
            Own().compile(build.sgd(), "mse")

    def test_train_step_of_an_object_is_refused(self):
        model = build.mlp()
        model.train_step = lambda data: {}
        with pytest.raises(ValueError, match="its own `train_step`"):
            dpa.privatize(model)
        model = build.compiled()
        model.train_step = lambda data: {}
        refused(model, "`train_step` was replaced")


class VariablesTest:
    """What the optimizer was built for must be what is trained."""

    def model(self) -> Any:
        model = build.compiled(run_eagerly=False)
        model.train_on_batch(X, Y)
        return model

    def test_frozen_after_build(self):
        model = self.model()
        model.get_layer("hidden").trainable = False
        refused(model, "2 trainable variables.*4.*frozen")

    def test_layer_added_after_build(self):
        model = self.model()
        model.add(layers.Dense(3))
        # Keras itself wants another compile; the guard does not rely on it.
        refused(model, "6 trainable variables|compile")

    def test_layer_replaced_after_build(self):
        model = self.model()
        model.pop()
        model.add(layers.Dense(3))
        refused(model, "4 trainable variables, and they are not the 4")

    def test_lora_enabled_after_build(self):
        model = self.model()
        # Keras locks built layers; LoRA opens the lock.
        model.get_layer("hidden").enable_lora(2)
        refused(model, "5 trainable variables")

    def test_lora_trains_with_a_new_optimizer(self):
        model = self.model()
        hidden = model.get_layer("hidden")
        hidden.enable_lora(2)
        kernel = hidden._kernel.numpy()
        model.compile(build.sgd(), build.labels_loss(), run_eagerly=True)
        gradients = build.alone(model, X, Y)
        update = build.taken(model, lambda: model.train_on_batch(X, Y))
        np.testing.assert_allclose(
            update, build.clipped_mean(gradients), rtol=1e-5, atol=1e-7
        )
        np.testing.assert_array_equal(hidden._kernel.numpy(), kernel)

    def test_optimizer_of_another_model(self):
        optimizer = self.model().optimizer
        other = build.compiled(optimizer=optimizer)
        refused(other, "trainable variables")

    def test_nothing_to_train(self):
        model = build.mlp()
        model.trainable = False
        model = build.compiled(model)
        refused(model, "no trainable variable")


class Counter(layers.Layer):
    """Keeps a sum of what it sees."""

    def build(self, _: Any) -> None:
        self.total = self.add_weight(
            shape=(4,), initializer="zeros", trainable=False, name="total"
        )

    def call(self, x: Any) -> Any:
        self.total.assign(self.total + keras.ops.sum(x, 0))
        return x


class Calls(layers.Layer):
    """Counts its calls: no function of the data."""

    def build(self, _: Any) -> None:
        self.calls = self.add_weight(
            shape=(), initializer="zeros", trainable=False, name="calls"
        )

    def call(self, x: Any) -> Any:
        self.calls.assign(self.calls + 1.0)
        return x


class RawVariable(layers.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.memory = tf.Variable(tf.zeros([4]), trainable=False)

    def call(self, x: Any) -> Any:
        self.memory.assign(tf.reduce_sum(tf.convert_to_tensor(x), 0))
        return x


class Overwrites(layers.Layer):
    def build(self, _: Any) -> None:
        self.centre = self.add_weight(shape=(4,), name="centre")

    def call(self, x: Any) -> Any:
        self.centre.assign(keras.ops.mean(x, 0))
        return x + self.centre


class Adds(layers.Layer):
    def call(self, x: Any) -> Any:
        self.add_loss(keras.ops.mean(keras.ops.square(x)))
        return x


class Centres(layers.Layer):
    """Subtracts the mean of the batch."""

    def call(self, x: Any) -> Any:
        return x - keras.ops.mean(x, axis=0, keepdims=True)


def sequential(*inner: Any) -> Any:
    return keras.Sequential([keras.Input((4,)), *inner, layers.Dense(3)])


class ModelTest:
    """What a model does with a batch that would break the guarantee."""

    REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
        "counter": (lambda: Counter(name="sum"), "sum/total' is changed"),
        "raw variable": (lambda: RawVariable(), "raw_variable.*raw tf.Var"),
        "overwritten": (
            lambda: Overwrites(name="own"),
            "own/centre' is changed",
        ),
        "add_loss": (lambda: Adds(name="adding"), "'adding'.*`add_loss`"),
        "activity": (
            lambda: layers.Dense(4, activity_regularizer="l2", name="active"),
            "'active'.*activity regularizer",
        ),
        "mixing": (lambda: Centres(name="middle"), "'middle'.*mixes"),
    }

    @pytest.mark.parametrize("eager", [True, False])
    @pytest.mark.parametrize(
        ("layer", "complaint"), REFUSED.values(), ids=REFUSED
    )
    def test_layer_is_refused(self, layer: Any, complaint: str, eager: bool):
        refused(
            build.compiled(sequential(layer()), run_eagerly=eager), complaint
        )

    @pytest.mark.parametrize("nested", [False, True])
    def test_normalization_is_refused_wherever_it_is(self, nested: bool):
        inner = keras.Sequential([layers.BatchNormalization(name="deep")])
        model = sequential(inner if nested else inner.layers[0])
        with pytest.raises(ValueError, match="'deep'.*freeze it"):
            dpa.privatize(model)
        assert not hasattr(model, "ledger")

    def test_all_reasons_of_a_model_are_given_at_once(self):
        model = build.compiled(
            sequential(Counter(name="sum"), Centres(name="middle"), Adds())
        )
        before = build.state(model)
        with pytest.raises(ValueError) as caught:  # noqa: PT011
            model.train_on_batch(X, Y)
        for reason in ("sum/total", "'middle'", "`add_loss`"):
            assert reason in str(caught.value)
        assert build.unchanged(model, before)

    def test_state_that_is_no_function_of_the_data_is_allowed(self):
        calls = Calls()
        model = build.compiled(sequential(calls))
        for _ in range(3):
            model.train_on_batch(X, Y)
        assert float(calls.calls) == 3.0

    def test_loss_without_reduction_is_refused(self):
        model = build.compiled(loss=build.labels_loss(reduction="none"))
        refused(model, "reduction")

    def test_float8_training_is_refused(self):
        with pytest.raises(ValueError, match="float8"):
            dpa.privatize(
                sequential(layers.Dense(4, dtype="float8_from_float32"))
            )

    def test_not_a_model(self):
        with pytest.raises(TypeError, match="Keras 3 model.*Dense"):
            dpa.privatize(layers.Dense(3))

    @pytest.mark.parametrize(
        ("arguments", "complaint"),
        [
            ({"clipping": "fast"}, "clipping='fast'"),
            ({"microbatch_size": 0}, "microbatch_size=0"),
            ({"microbatch_size": 2.5}, "microbatch_size=2.5"),
        ],
        ids=str,
    )
    def test_arguments_are_checked(self, arguments: Any, complaint: str):
        model = build.mlp()
        with pytest.raises(ValueError, match=complaint):
            dpa.privatize(model, **arguments)
        assert type(model) is keras.Sequential


@pytest.mark.slow
def test_more_than_one_replica_is_refused():
    script = """
        import warnings
        import tensorflow as tf
        warnings.simplefilter("ignore")
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(
            cpu, [tf.config.LogicalDeviceConfiguration()] * 2
        )
        from tests.training import build
        x, y = build.data()
        strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
        with strategy.scope():
            model = build.mlp()
            try:
                build.compiled(model, run_eagerly=False)
            except ValueError as error:
                print("compile:", error)
        model = build.compiled(run_eagerly=False)
        before = build.state(model)
        with strategy.scope():
            try:
                model.fit(x, y, verbose=0)
            except ValueError as error:
                print("fit:", error)
        assert build.unchanged(model, before)
    """
    output = build.output_of(script)
    for way in ("compile", "fit"):
        assert f"{way}: " in output
    assert output.count("2 replicas: noise would be added once per") == 2


def test_no_reason_raises_nothing():
    raise_all([], "Nothing")
