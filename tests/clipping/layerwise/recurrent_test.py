import keras
import numpy as np
import pytest

from tests.clipping.layerwise.compare import assert_same, compiled

rng = np.random.default_rng(6)
layers = keras.layers
LAYERS = {
    "simple": lambda: layers.SimpleRNN(3),
    "lstm": lambda: layers.LSTM(3),
    "lstm without bias": lambda: layers.LSTM(3, use_bias=False),
    "lstm, sequences": lambda: layers.LSTM(3, return_sequences=True),
    "lstm, backwards": lambda: layers.LSTM(3, go_backwards=True),
    "lstm, backwards, sequences": lambda: layers.LSTM(
        3, go_backwards=True, return_sequences=True
    ),
    "lstm, unrolled": lambda: layers.LSTM(3, unroll=True),
    "gru": lambda: layers.GRU(3),
    "gru, sequences": lambda: layers.GRU(3, return_sequences=True),
    "gru without bias": lambda: layers.GRU(3, use_bias=False),
    "gru, reset before": lambda: layers.GRU(3, reset_after=False),
    "gru, backwards": lambda: layers.GRU(3, go_backwards=True),
    "both directions": lambda: layers.Bidirectional(layers.GRU(3)),
}


def data(rows=4):
    x = rng.standard_normal((rows, 4, 5)).astype(np.float32)
    return x, rng.standard_normal((rows, 2)).astype(np.float32)


def model_of(inputs, hidden):
    hidden = layers.Flatten()(hidden)
    return compiled(keras.Model(inputs, layers.Dense(2)(hidden)))


class RecurrentTest:
    @pytest.mark.parametrize("name", LAYERS)
    def test_equals_the_reference(self, name):
        inputs = keras.Input((4, 5))
        assert_same(model_of(inputs, LAYERS[name]()(inputs)), *data())

    @pytest.mark.parametrize("layer", [layers.LSTM, layers.GRU])
    def test_masked_steps(self, layer):
        inputs = keras.Input((4, 5))
        hidden = layers.Masking()(inputs)
        hidden = layer(3, return_sequences=True)(hidden)
        model = model_of(inputs, layer(2)(hidden))
        x, y = data()
        x[1, 2:] = x[3, 1:] = x[2, :2] = 0
        assert_same(model, x, y)

    def test_states_are_outputs_and_inputs(self):
        inputs = keras.Input((4, 5))
        first, *states = layers.LSTM(3, return_state=True)(inputs)
        second = layers.LSTM(3)(inputs, initial_state=states)
        model = model_of(inputs, layers.Concatenate()([first, second]))
        assert_same(model, *data())
