import keras
import numpy as np
import pytest

from tests.clipping.layerwise.compare import assert_same, compiled

rng = np.random.default_rng(4)
layers = keras.layers
CASES = {
    "1d": ((9, 3), lambda: layers.Conv1D(4, 3)),
    "1d causal": ((9, 3), lambda: layers.Conv1D(4, 3, padding="causal")),
    "1d dilated causal": (
        (9, 3),
        lambda: layers.Conv1D(4, 3, padding="causal", dilation_rate=2),
    ),
    "1d strides": (
        (9, 10),
        lambda: layers.Conv1D(4, 3, strides=2, padding="same"),
    ),
    "2d": ((7, 6, 2), lambda: layers.Conv2D(3, 3, activation="tanh")),
    "2d same strides": (
        (7, 6, 2),
        lambda: layers.Conv2D(3, (4, 3), strides=(2, 3), padding="same"),
    ),
    "2d many channels": (
        (5, 6, 9),
        lambda: layers.Conv2D(3, (2, 3), padding="same", use_bias=False),
    ),
    "2d dilated": (
        (8, 7, 2),
        lambda: layers.Conv2D(3, 3, dilation_rate=(2, 1), padding="same"),
    ),
    "2d one point": ((4, 4, 3), lambda: layers.Conv2D(5, 1)),
    "2d one point, strides": (
        (5, 4, 9),
        lambda: layers.Conv2D(5, 1, strides=2),
    ),
    "2d groups": ((6, 6, 4), lambda: layers.Conv2D(6, 3, groups=2)),
    "3d": (
        (5, 4, 5, 2),
        lambda: layers.Conv3D(3, (2, 3, 2), strides=(1, 2, 2)),
    ),
    "1d transpose": (
        (5, 3),
        lambda: layers.Conv1DTranspose(4, 3, strides=2, padding="same"),
    ),
    "2d transpose": (
        (4, 3, 2),
        lambda: layers.Conv2DTranspose(3, 3, strides=2),
    ),
    "2d transpose, output padding": (
        (4, 3, 2),
        lambda: layers.Conv2DTranspose(
            3, 3, strides=2, padding="same", output_padding=1
        ),
    ),
    "3d transpose": (
        (3, 2, 3, 2),
        lambda: layers.Conv3DTranspose(2, 2, strides=2),
    ),
    "1d depthwise": (
        (8, 3),
        lambda: layers.DepthwiseConv1D(3, depth_multiplier=2),
    ),
    "2d depthwise": (
        (6, 5, 3),
        lambda: layers.DepthwiseConv2D(
            3, strides=2, padding="same", depth_multiplier=2
        ),
    ),
    "1d separable": (
        (8, 3),
        lambda: layers.SeparableConv1D(4, 3, padding="same"),
    ),
    "2d separable": (
        (6, 6, 3),
        lambda: layers.SeparableConv2D(4, 3, depth_multiplier=2),
    ),
}


def model_of(layer, shape):
    inputs = keras.Input(shape)
    hidden = layers.Flatten()(layer(inputs))
    return compiled(keras.Model(inputs, layers.Dense(2)(hidden)))


def data(shape, rows=4):
    x = rng.standard_normal((rows, *shape)).astype(np.float32)
    return x, rng.standard_normal((rows, 2)).astype(np.float32)


class ConvolutionTest:
    @pytest.mark.parametrize("case", CASES)
    def test_equals_the_reference(self, case):
        shape, layer = CASES[case]
        assert_same(model_of(layer(), shape), *data(shape))

    @pytest.mark.parametrize("rank", [1, 2])
    def test_lora(self, rank):
        shape = (6,) * rank + (3,)
        layer = (layers.Conv1D, layers.Conv2D)[rank - 1](4, 3)
        model = model_of(layer, shape)
        layer.enable_lora(2)
        assert_same(compiled(model), *data(shape))

    def test_unknown_size_goes_by_the_fallback(self):
        inputs = keras.Input((None, 3))
        hidden = layers.Conv1D(4, 3, name="sized")(inputs)
        hidden = layers.GlobalAveragePooling1D()(hidden)
        model = compiled(keras.Model(inputs, layers.Dense(2)(hidden)))
        assert_same(model, *data((7, 3)))
