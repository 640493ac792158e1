"""`privatize`, `DPModel` and `DPSequential`."""

from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

import tf_dpadaptive as dpa
from tests.training import build

X, Y = build.data()


class ByCall(dpa.DPModel):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.dense = layers.Dense(3)

    def call(self, x: Any) -> Any:
        return self.dense(x)


class ByGraph(dpa.DPModel):
    def __init__(self, **options: Any) -> None:
        inputs = keras.Input((4,))
        super().__init__(inputs, layers.Dense(3)(inputs), **options)


def functional(**options: Any) -> Any:
    inputs = keras.Input((4,))
    return dpa.DPModel(inputs, layers.Dense(3)(inputs), **options)


def sequential(**options: Any) -> Any:
    return dpa.DPSequential([keras.Input((4,)), layers.Dense(3)], **options)


FORMS = [functional, ByGraph, ByCall, sequential]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
def test_subclass_forms_train_privately(form: Any):
    model = form(clipping="sequential", microbatch_size=3)
    assert model.private.clipping == "sequential"
    assert model.private.microbatch_size == 3
    model.compile(build.sgd(), build.labels_loss(), run_eagerly=True)
    model(X)
    gradients = build.alone(model, X, Y)
    update = build.taken(model, lambda: model.train_on_batch(X, Y))
    np.testing.assert_allclose(
        update, build.clipped_mean(gradients), rtol=1e-5, atol=1e-7
    )
    assert isinstance(model, keras.Model)


def test_instances_tell_privatized_models_from_others():
    private = dpa.privatize(build.mlp())
    assert isinstance(private, dpa.DPModel)
    assert isinstance(private, dpa.DPSequential)
    assert isinstance(functional(), dpa.DPModel)
    assert not isinstance(functional(), dpa.DPSequential)
    assert isinstance(ByCall(), dpa.DPModel)
    assert not isinstance(build.mlp(), dpa.DPModel)
    assert not isinstance(dpa.privatize(build.mlp()), ByCall)


def test_a_functional_subclass_leaves_the_others_alone():
    # Keras exchanges base classes there, up to DPModel itself.
    ByGraph()
    model = ByCall()
    assert not isinstance(model, keras.src.models.Functional)
    model.compile(build.sgd(), build.labels_loss(), run_eagerly=True)
    model.train_on_batch(X, Y)


def test_is_in_place_and_may_be_repeated():
    model = build.mlp()
    assert dpa.privatize(model) is model
    kind = type(model)
    assert dpa.privatize(model, clipping="vectorized") is model
    assert type(model) is kind
    assert model.private.clipping == "vectorized"


def test_weights_and_outputs_stay():
    model = build.mlp()
    before, outputs = build.values(model), model(X)
    dpa.privatize(model)
    for now, then in zip(build.values(model), before, strict=True):
        np.testing.assert_array_equal(now, then)
    np.testing.assert_array_equal(model(X), outputs)


def test_other_clipping_gives_the_same_update():
    model = build.compiled(clipping="sequential")
    start = build.values(model)
    one = build.taken(model, lambda: model.train_on_batch(X, Y))
    dpa.privatize(model, clipping="vectorized")
    build.assign(model, start)
    model.compile(build.sgd(), build.labels_loss(), run_eagerly=True)
    two = build.taken(model, lambda: model.train_on_batch(X, Y))
    np.testing.assert_allclose(one, two, rtol=1e-5, atol=1e-7)
    assert model.ledger.updates == 2


def test_attributes_of_the_model_that_would_be_hidden_are_refused():
    class Named(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.epsilon = 1e-3
            self.private = "mine"

    with pytest.raises(ValueError, match="`epsilon`.*`private`"):
        dpa.privatize(Named())
