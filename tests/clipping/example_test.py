"""One example is a batch of one; nothing is written, nothing is shared."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from tests.training import build
from tf_dpadaptive.batch import Batch
from tf_dpadaptive.clipping.example import (
    ExampleLoss,
    penalty,
    penalty_gradients,
    seed_generators,
    without_regularizers,
)

X, Y = build.data()


def row(i: int = 0) -> Batch:
    return Batch(tf.constant(X[i]), tf.constant(Y[i]), (), ())


def with_everything() -> Any:
    return keras.Sequential(
        [
            keras.Input((4,)),
            layers.Dense(5, kernel_regularizer="l2"),
            layers.Dropout(0.5),
            layers.Dense(3, bias_regularizer=keras.regularizers.L1(0.5)),
        ]
    )


@pytest.fixture(scope="module")
def model() -> Any:
    return build.compiled(with_everything())


def seeds(example: ExampleLoss, number: int) -> list[tf.Tensor]:
    return [
        tf.constant([number, number], tf.int64) for _ in example.seed_states
    ]


def test_gradient_is_that_of_keras_on_one_example():
    model = build.compiled()
    example = ExampleLoss(model)
    result = example(example.values(), row(2), seeds(example, 1))
    (expected,) = build.alone(model, X[2:3], Y[2:3])
    found = [np.ravel(result.gradients[i]) for i in range(4)]
    np.testing.assert_allclose(np.concatenate(found), expected, rtol=1e-5)
    assert result.loss.shape == []
    assert result.outputs.shape == [3]


def test_nothing_is_written_and_no_seed_moves(model: Any):
    example = ExampleLoss(model)
    before = [v.numpy() for v in model.variables]
    example(example.values(), row(), seeds(example, 1))
    for variable, value in zip(model.variables, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)


def test_seeds_decide_what_random_layers_draw(model: Any):
    example = ExampleLoss(model)
    one, same, other = (
        example(example.values(), row(), seeds(example, number)).outputs
        for number in (1, 1, 2)
    )
    np.testing.assert_array_equal(one, same)
    assert not np.array_equal(one, other)


def test_drawn_seeds_are_distinct_and_move_on(model: Any):
    example = ExampleLoss(model)
    drawn = np.concatenate(
        [example.draw_seeds(tf.constant(50))[0] for _ in range(3)]
    )
    assert drawn.shape == (150, 2)
    assert len(np.unique(drawn, axis=0)) == 150


def test_regularizers_are_apart_and_come_back(model: Any):
    kernel = model.layers[0].kernel
    bias = model.layers[2].bias
    kept = kernel.regularizer
    with without_regularizers(model):
        assert kernel.regularizer is None
    assert kernel.regularizer is kept
    with pytest.raises(RuntimeError), without_regularizers(model):
        raise RuntimeError
    assert kernel.regularizer is kept
    bias.assign([1.0, -2.0, 3.0])
    gradients = penalty_gradients(model)
    assert sorted(gradients) == [0, 3]
    np.testing.assert_allclose(gradients[0], 0.02 * kernel.numpy(), rtol=1e-6)
    np.testing.assert_allclose(gradients[3], [0.5, -0.5, 0.5])
    np.testing.assert_allclose(
        penalty(model), 0.01 * (kernel.numpy() ** 2).sum() + 3.0, rtol=1e-5
    )


def test_seed_generators_are_found_wherever_they_are():
    inner = keras.Sequential([layers.Dropout(0.1), layers.Dense(2)])
    model = keras.Sequential(
        [keras.Input((4,)), layers.GaussianNoise(0.1), inner]
    )
    model.build((None, 4))
    found = seed_generators(model)
    # Two layers' own, and the one that Keras draws from by default.
    assert len(found) == 3
    assert len({id(generator) for generator in found}) == 3


def test_embedding_gradients_are_dense():
    model = build.compiled(
        keras.Sequential(
            [
                keras.Input((4,), dtype="int32"),
                layers.Embedding(6, 2),
                layers.GlobalAveragePooling1D(),
                layers.Dense(3),
            ]
        )
    )
    model(np.zeros((1, 4), np.int32))
    example = ExampleLoss(model)
    tokens = Batch(tf.constant([1, 1, 3, 0]), tf.constant(2), (), ())
    result = example(example.values(), tokens, seeds(example, 1))
    assert result.gradients[0].shape == [6, 2]
    assert not result.gradients[0].numpy()[[2, 4, 5]].any()
