"""Vectorized and sequential engines return the same, piece by piece."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from tests.training import build
from tf_dpadaptive.batch import Batch
from tf_dpadaptive.clipping.engine import Chunk
from tf_dpadaptive.clipping.example import ExampleLoss
from tf_dpadaptive.clipping.geometry import Geometry
from tf_dpadaptive.clipping.sequential import SequentialEngine
from tf_dpadaptive.clipping.vectorized import VectorizedEngine

X, Y = build.data()


def convolution() -> Any:
    return keras.Sequential(
        [
            keras.Input((6, 6, 1)),
            layers.Conv2D(3, 3, activation="tanh"),
            layers.GroupNormalization(3),
            layers.MaxPooling2D(2),
            layers.Flatten(),
            layers.Dropout(0.3),
            layers.Dense(3),
        ]
    )


def masked() -> Any:
    return keras.Sequential(
        [
            keras.Input((4,), dtype="int32"),
            layers.Embedding(6, 3, mask_zero=True),
            layers.Dense(3),
        ]
    )


CASES: dict[str, Any] = {
    "dense": (build.mlp, X, Y, ()),
    "weights": (build.mlp, X, Y, np.linspace(0, 2, 8).astype("float32")),
    "convolution": (
        convolution,
        np.random.default_rng(0)
        .standard_normal((8, 6, 6, 1))
        .astype("float32"),
        Y,
        (),
    ),
    "masks": (
        masked,
        np.random.default_rng(0).integers(0, 6, (8, 4)).astype("int32"),
        np.tile(Y[:, None] % 3, 4),
        (),
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@pytest.mark.parametrize("scaled", [False, True])
def test_vectorized_equals_sequential(case: Any, scaled: bool):
    make, x, y, weight = case
    model = build.compiled(make(), metrics=["accuracy"])
    model.test_on_batch(x, y)
    example = ExampleLoss(model)
    geometry = Geometry()
    if scaled:
        rng = np.random.default_rng(2)
        geometry = Geometry(
            [
                tf.constant(rng.uniform(0.1, 3, v.shape), tf.float32)
                for v in model.trainable_variables
            ],
            [
                tf.constant(0.1 * rng.standard_normal(v.shape), tf.float32)
                for v in model.trainable_variables
            ],
        )
    chunk = Chunk(
        tf.nest.map_structure(tf.constant, Batch(x, y, weight, ())),
        tf.constant([True] * 6 + [False] * 2),
        example.draw_seeds(tf.constant(8)),
    )
    found, expected = (
        tf.function(
            lambda chunk, engine=engine: engine(example).clipped_sum(
                example.values(), chunk, 0.7, geometry
            ),
            autograph=False,
        )(chunk)
        for engine in (VectorizedEngine, SequentialEngine)
    )
    tf.nest.assert_same_structure(found, expected)
    for one, other in zip(
        tf.nest.flatten(found), tf.nest.flatten(expected), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    assert found.norms.shape == found.losses.shape == [8]


def test_no_silent_slow_loop():
    class NoForm(layers.Layer):
        def call(self, x: Any) -> Any:
            same = tf.numpy_function(lambda a: a, [x], x.dtype)
            return tf.ensure_shape(same, x.shape)

    model = build.compiled(
        keras.Sequential([keras.Input((4,)), NoForm(), layers.Dense(3)])
    )
    model(X)
    example = ExampleLoss(model)
    chunk = Chunk(
        tf.nest.map_structure(tf.constant, Batch(X, Y, (), ())),
        tf.ones([8], tf.bool),
        example.draw_seeds(tf.constant(8)),
    )
    with pytest.raises(ValueError, match="No pfor vectorization"):
        VectorizedEngine(example).clipped_sum(
            example.values(), chunk, 1.0, Geometry()
        )
