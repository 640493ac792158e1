"""Rows that meet are found on made-up data, whatever the inputs are."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from tests.training import build
from tests.training.checks_test import Centres
from tf_dpadaptive.batch import Batch
from tf_dpadaptive.clipping.mixing import mixing_reasons

X, Y = build.data()
TOKENS = np.zeros((8, 5), np.int32)


def reasons(
    model: Any, x: Any = X, y: Any = Y, loss: Any = None
) -> tuple[list[str], list[str]]:
    """Reasons for refusal, and what the log says."""
    model = build.compiled(model, loss=loss)
    model(x)
    batch = Batch(
        tf.nest.map_structure(tf.constant, x),
        tf.nest.map_structure(tf.constant, y),
    )
    with build.log_lines() as lines:
        found = mixing_reasons(model, batch)
    return found, lines


def sequential(*inner: Any, head: Any = None) -> Any:
    head = layers.Dense(3) if head is None else head
    return keras.Sequential([keras.Input((4,)), *inner, head])


def tokens(*inner: Any) -> Any:
    return keras.Sequential(
        [keras.Input((5,), dtype="int32"), *inner, layers.Dense(3)]
    )


class Pools(layers.Layer):
    """Adds the mean over the batch of what its rows of tokens are."""

    def call(self, x: Any) -> Any:
        return x + keras.ops.mean(x, axis=0, keepdims=True)


class Owner(keras.Model):
    """Mixes in its own `call`, between its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = layers.Dense(4), layers.Dense(3)

    def call(self, x: Any) -> Any:
        return self.two(self.one(x) - keras.ops.max(x, 0))


class MixingTest:
    @pytest.mark.parametrize(
        ("model", "x", "name"),
        [
            (lambda: sequential(Centres(name="here")), X, "here"),
            (
                lambda: sequential(
                    Centres(name="here"),
                    head=layers.Dense(3, kernel_initializer="zeros"),
                ),
                X,
                "here",
            ),
            (
                lambda: sequential(
                    keras.Sequential([layers.Dense(4), Centres(name="deep")])
                ),
                X,
                "deep",
            ),
            (
                lambda: tokens(
                    layers.Embedding(6, 4),
                    Pools(name="here"),
                    layers.GlobalAveragePooling1D(),
                ),
                TOKENS,
                "here",
            ),
            (Owner, X, "The model"),
        ],
        ids=["layer", "zero head", "nested", "tokens", "own call"],
    )
    def test_layer_that_mixes_is_named(self, model: Any, x: Any, name: str):
        found, _ = reasons(model(), x)
        assert len(found) == 1
        assert name in found[0]
        assert "mixes" in found[0]

    @pytest.mark.parametrize(
        ("model", "x"),
        [
            (lambda: sequential(layers.Dropout(0.5)), X),
            (lambda: sequential(layers.GaussianNoise(1.0)), X),
            (lambda: sequential(layers.LayerNormalization()), X),
            (lambda: sequential(layers.BatchNormalization()), X),
            (
                lambda: tokens(
                    layers.Embedding(6, 4, mask_zero=True), layers.LSTM(3)
                ),
                TOKENS,
            ),
        ],
        ids=["dropout", "noise", "norm", "frozen norm", "masked lstm"],
    )
    def test_layer_that_does_not_mix_passes(self, model: Any, x: Any):
        model = model()
        for layer in model.layers:
            if isinstance(layer, layers.BatchNormalization):
                layer.trainable = False
        found, lines = reasons(model, x)
        assert found == []
        assert not [line for line in lines if "tried out" in line]

    def test_layers_are_as_before(self):
        model = sequential(Centres(name="here"))
        reasons(model)
        assert not [layer for layer in model.layers if "call" in vars(layer)]

    def test_strings_and_several_inputs(self):
        text = keras.Input((), dtype="string", name="text")
        size = keras.Input((2,), name="size")
        codes = layers.StringLookup(vocabulary=["a b", "b a a"])(text)
        words = layers.Embedding(4, 3)(codes)
        model = keras.Model(
            {"text": text, "size": size},
            layers.Dense(3)(layers.concatenate([words, size])),
        )
        x = {"text": np.array(["a b"] * 8), "size": X[:, :2]}
        found, lines = reasons(model, x)
        assert found == []
        assert not [line for line in lines if "tried out" in line]


def texts(pool: Any, **embedding: Any) -> Any:
    """A model of strings whose rows are padded to the longest of a batch."""
    words = layers.TextVectorization(vocabulary=["a", "b"])
    return keras.Sequential(
        [
            keras.Input((), dtype="string"),
            words,
            layers.Embedding(4, 3, **embedding),
            pool,
            layers.Dense(3),
        ]
    )


class PaddedTextTest:
    TEXTS = np.array(["a b"] * 8)

    def test_mean_over_the_padding_is_refused(self):
        found, _ = reasons(texts(layers.GlobalAveragePooling1D()), self.TEXTS)
        assert len(found) == 1
        assert "TextVectorization) mixes" in found[0]
        assert "`output_sequence_length`" in found[0]

    def test_mean_without_the_padding_passes(self):
        model = texts(layers.GlobalAveragePooling1D(), mask_zero=True)
        found, lines = reasons(model, self.TEXTS)
        assert found == []
        assert not [line for line in lines if "tried out" in line]


class LossTest:
    @pytest.mark.parametrize(
        ("loss", "mixes"),
        [
            (None, False),
            ("sparse_categorical_crossentropy", False),
            (build.labels_loss(reduction="sum"), True),
            (
                lambda y, p: keras.ops.square(
                    p[:, 0] - keras.ops.mean(p[:, 0])
                ),
                True,
            ),
        ],
        ids=["mean", "by name", "sum", "contrast"],
    )
    def test_loss_that_mixes_is_spoken_of(self, loss: Any, mixes: bool):
        found, lines = reasons(sequential(), loss=loss)
        assert found == []
        assert bool([line for line in lines if "not the mean" in line]) is mixes

    def test_masks_make_a_loss_mix(self):
        model = tokens(layers.Embedding(6, 4, mask_zero=True))
        found, lines = reasons(model, TOKENS, TOKENS)
        assert found == []
        assert [line for line in lines if "not the mean" in line]

    def test_it_is_said_once(self):
        model = build.compiled(loss=build.labels_loss(reduction="sum"))
        with build.log_lines() as lines:
            for rows in (8, 8):
                model.train_on_batch(X[:rows], Y[:rows])
        assert len([line for line in lines if "not the mean" in line]) == 1


class NotTriedTest:
    def test_model_that_takes_no_made_up_rows_is_only_mentioned(self):
        class Picky(layers.Layer):
            def call(self, x: Any) -> Any:
                if tf.executing_eagerly() and x.shape[0] == 4:
                    raise KeyError("no such word")
                return x

        found, lines = reasons(sequential(Picky()))
        assert found == []
        assert [line for line in lines if "no such word" in line]
