"""`auto` takes the best engine that works and says which."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from tests.training import build
from tf_dpadaptive.clipping import choose

X, Y = build.data()
TIMED = np.repeat(X[:, None], 5, 1)


def attention() -> Any:
    inputs = keras.Input((5, 4))
    mixed = layers.MultiHeadAttention(2, 3)(inputs, inputs)
    return keras.Model(
        inputs, layers.Dense(3)(layers.GlobalAveragePooling1D()(mixed))
    )


def engine_of(model: Any, x: Any = X, clipping: str = "auto") -> Any:
    model = build.compiled(model, clipping=clipping)
    with build.log_lines() as lines:
        model.train_on_batch(x, Y)
    said = [line for line in lines if line.startswith("Per-example")]
    return model.private.setup.engine.name, said


@pytest.mark.parametrize("mode", ["vectorized", "sequential"])
def test_named_engine_is_taken(mode: str):
    name, said = engine_of(build.mlp(), clipping=mode)
    assert name == mode
    assert len(said) == (mode == "vectorized")


def test_auto_says_once_which_engine_it_took():
    name, said = engine_of(build.mlp())
    assert name != "sequential"
    assert len(said) == 1
    assert name.replace("layerwise", "layer-wise") in said[0]


class CrashTest:
    """Graphs that crash the process with oneDNN on never run vectorized."""

    @pytest.mark.parametrize("dropout", [0.0, 0.1])
    def test_attention_is_refused(self, dropout: float, monkeypatch: Any):
        monkeypatch.delenv("TF_ENABLE_ONEDNN_OPTS", raising=False)
        inputs = keras.Input((5, 4))
        mixed = layers.MultiHeadAttention(2, 3, dropout=dropout)(inputs, inputs)
        model = keras.Model(inputs, layers.Dense(3)(mixed[:, 0]))
        with pytest.raises(ValueError, match="TF_ENABLE_ONEDNN_OPTS=0"):
            engine_of(model, TIMED, "vectorized")

    def test_attention_trains_by_another_engine(self, monkeypatch: Any):
        monkeypatch.delenv("TF_ENABLE_ONEDNN_OPTS", raising=False)
        model = build.compiled(attention())
        gradients = build.alone(model, TIMED, Y)
        update = build.taken(model, lambda: model.train_on_batch(TIMED, Y))
        assert model.private.setup.engine.name != "vectorized"
        np.testing.assert_allclose(
            update, build.clipped_mean(gradients), rtol=1e-4, atol=1e-6
        )


def test_operation_without_a_vectorized_form(monkeypatch: Any):
    class NoForm(layers.Layer):
        def call(self, x: Any) -> Any:
            return tf.quantization.fake_quant_with_min_max_args(x, -9, 9)

    monkeypatch.setattr(choose, "_layerwise", lambda *_: None, raising=False)
    inner = keras.Sequential([keras.Input((4,)), NoForm(), layers.Dense(3)])
    name, said = engine_of(inner)
    assert name == "sequential"
    assert "slow" in said[0]
    assert "vectorized engine can't run this model" in said[0]
    inner = keras.Sequential([keras.Input((4,)), NoForm(), layers.Dense(3)])
    with pytest.raises(ValueError, match='Use clipping="auto"'):
        engine_of(inner, clipping="vectorized")
