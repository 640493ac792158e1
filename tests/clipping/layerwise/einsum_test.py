import keras
import numpy as np
import pytest

from tests.clipping.layerwise.compare import assert_same, compiled

rng = np.random.default_rng(1)


def wrapped(layer, shape, **kwargs):
    inputs = keras.Input(shape)
    outputs = keras.layers.Flatten()(layer(inputs))
    return compiled(keras.Model(inputs, keras.layers.Dense(2)(outputs)))


def data(*shape, rows=5):
    x = rng.standard_normal((rows, *shape)).astype(np.float32)
    return x, rng.standard_normal((rows, 2)).astype(np.float32)


EQUATIONS = {
    "dense": ("ab,bc->ac", (4,), "c", (5,)),
    "sequence": ("abc,cd->abd", (3, 4), "d", (3, 5)),
    "heads": ("abc,cde->abde", (3, 2, 3), "de", (3, 5)),
    "from heads": ("abcd,cde->abe", (3, 4), "e", (3, 2, 5)),
    "swapped": ("abc,dc->adb", (4, 3), "d", (3, 5)),
    "ellipsis": ("...x,xy->...y", 4, "y", (3, 5)),
    "a kernel for each step": ("abc,bcd->abd", (3, 4), "bd", (3, 5)),
    "summed input": ("abc,cd->ad", (4,), None, (3, 5)),
    "bias of one axis": ("abc,cde->abde", (3, 2, 3), "d", (3, 5)),
}


class EinsumDenseTest:
    @pytest.mark.parametrize("case", EQUATIONS)
    def test_equals_the_reference(self, case):
        equation, output, bias, shape = EQUATIONS[case]
        layer = keras.layers.EinsumDense(
            equation, output, bias_axes=bias, activation="tanh"
        )
        assert_same(wrapped(layer, shape), *data(*shape))

    @pytest.mark.parametrize("case", ["heads", "from heads", "dense"])
    def test_lora(self, case):
        equation, output, bias, shape = EQUATIONS[case]
        layer = keras.layers.EinsumDense(equation, output, bias_axes=bias)
        model = wrapped(layer, shape)
        layer.enable_lora(2, lora_alpha=3)
        assert_same(compiled(model), *data(*shape))

    def test_a_kernel_with_the_first_axis_goes_by_the_fallback(self):
        # "ab,cb->ac" is fine; a kernel axis that is summed is not ours.
        layer = keras.layers.EinsumDense("ab,bcd->ac", (4,), name="odd")
        with pytest.raises(ValueError, match="."):
            wrapped(layer, (5,))


class AttentionTest:
    def test_multi_head(self):
        inputs = keras.Input((4, 6))
        attended = keras.layers.MultiHeadAttention(2, 3)(inputs, inputs)
        model = compiled(
            keras.Model(inputs, keras.layers.Dense(2)(attended[:, 0]))
        )
        assert_same(model, *data(4, 6))

    def test_grouped_query(self):
        inputs = keras.Input((4, 6))
        attended = keras.layers.GroupQueryAttention(3, 4, 2)(inputs, inputs)
        model = compiled(
            keras.Model(inputs, keras.layers.Dense(2)(attended[:, 0]))
        )
        assert_same(model, *data(4, 6))
