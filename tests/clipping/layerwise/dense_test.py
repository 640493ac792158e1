import keras
import numpy as np
import pytest

from tests.clipping.layerwise.compare import assert_same, compiled

rng = np.random.default_rng(0)


def mlp(shape=(6,), **kwargs):
    return compiled(
        keras.Sequential(
            [
                keras.Input(shape),
                keras.layers.Dense(5, activation="tanh", **kwargs),
                keras.layers.Dense(3),
            ]
        )
    )


def data(*shape, rows=7, classes=3):
    x = rng.standard_normal((rows, *shape)).astype(np.float32)
    y = rng.standard_normal((rows, *shape[:-1], classes)).astype(np.float32)
    return x, y


class DenseTest:
    @pytest.mark.parametrize("eager", [False, True])
    def test_equals_the_reference(self, eager):
        assert_same(mlp(), *data(6), eager=eager)

    def test_with_a_time_axis(self):
        assert_same(mlp((4, 6)), *data(4, 6))

    def test_with_two_axes_between(self):
        assert_same(mlp((4, 2, 6)), *data(4, 2, 6))

    def test_without_bias(self):
        assert_same(mlp(use_bias=False), *data(6))

    def test_lora(self):
        model = mlp()
        model.layers[0].enable_lora(2)
        assert_same(compiled(model), *data(6))
        model = mlp((4, 6))
        model.layers[0].enable_lora(2, lora_alpha=3)
        assert_same(compiled(model), *data(4, 6))

    def test_frozen_weights_have_no_entry(self):
        model = mlp()
        model.layers[0].trainable = False
        assert_same(compiled(model), *data(6))
