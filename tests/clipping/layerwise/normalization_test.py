import keras
import numpy as np
import pytest

from tests.clipping.layerwise.compare import assert_same, compiled

rng = np.random.default_rng(3)
LAYERS = {
    "layer": lambda: keras.layers.LayerNormalization(),
    "layer without scale": lambda: keras.layers.LayerNormalization(scale=False),
    "layer without centre": lambda: keras.layers.LayerNormalization(
        center=False
    ),
    "layer over two axes": lambda: keras.layers.LayerNormalization(axis=[1, 2]),
    "layer over a middle axis": lambda: keras.layers.LayerNormalization(axis=1),
    "rms": lambda: keras.layers.RMSNormalization(),
    "group": lambda: keras.layers.GroupNormalization(3),
    "group, channels first": lambda: keras.layers.GroupNormalization(2, axis=1),
    "prelu": lambda: keras.layers.PReLU(),
    "prelu, shared axes": lambda: keras.layers.PReLU(shared_axes=[1]),
}


class NormalizationTest:
    @pytest.mark.parametrize("name", LAYERS)
    def test_equals_the_reference(self, name):
        inputs = keras.Input((4, 6))
        hidden = LAYERS[name]()(inputs)
        model = compiled(keras.Model(inputs, keras.layers.Dense(2)(hidden)))
        assert_same(
            model,
            rng.standard_normal((5, 4, 6)).astype(np.float32),
            rng.standard_normal((5, 4, 2)).astype(np.float32),
        )
