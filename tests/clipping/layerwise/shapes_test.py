"""Every family of rules over shapes that nobody chose by hand."""

import math
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st

from tests.clipping.layerwise.compare import assert_same, compiled

layers = keras.layers
pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def float64() -> Iterator[None]:
    """A sum that cancels has too few digits in float32 to compare at 1e-5."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("float64")
    yield
    keras.config.set_dtype_policy(before)


# Each example traces four geometries and the reference: a second or two.
some = settings(
    max_examples=8,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


def check(layer: Any, shape: tuple[int, ...], **options: Any) -> None:
    """Compares a model of this layer and a head with the reference."""
    keras.utils.set_random_seed(1)
    inputs = keras.Input(shape)
    hidden = layers.Flatten()(layer(inputs))
    model = compiled(keras.Model(inputs, layers.Dense(2)(hidden)))
    rng = np.random.default_rng(2)
    x = rng.standard_normal((3, *shape))
    y = rng.standard_normal((3, 2))
    assert_same(model, x, y, only=("identity", "both"), **options)


@some
@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=3),
    st.integers(1, 40),
    st.booleans(),
)
def test_dense(shape: list[int], units: int, use_bias: bool) -> None:
    check(layers.Dense(units, use_bias=use_bias), tuple(shape))


@some
@given(st.data(), st.integers(1, 3), st.sampled_from(["same", "valid"]))
def test_convolution(data: Any, rank: int, padding: str) -> None:
    def each(least: int, most: int) -> tuple[int, ...]:
        return tuple(data.draw(st.integers(least, most)) for _ in range(rank))

    kernel, strides, size = each(1, 4), each(1, 3), each(3, 9)
    dilation = each(1, 2) if max(strides) == 1 else (1,) * rank
    groups = data.draw(st.integers(1, 3))
    channels = groups * data.draw(st.integers(1, 6))
    filters = groups * data.draw(st.integers(1, 4))
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    assume(all(r <= s for r, s in zip(reach, size, strict=True)))
    kind = (layers.Conv1D, layers.Conv2D, layers.Conv3D)[rank - 1]
    layer = kind(
        filters,
        kernel,
        strides=strides,
        padding=padding,
        dilation_rate=dilation,
        groups=groups,
    )
    check(layer, (*size, channels))


@some
@given(st.data(), st.integers(1, 2), st.sampled_from(["same", "valid"]))
def test_transposed_depthwise_and_separable_convolution(
    data: Any, rank: int, padding: str
) -> None:
    kernel = data.draw(st.integers(1, 3))
    strides = data.draw(st.integers(1, 3))
    size = tuple(data.draw(st.integers(3, 6)) for _ in range(rank))
    channels = data.draw(st.integers(1, 4))
    kinds = [
        (
            layers.Conv1DTranspose,
            layers.DepthwiseConv1D,
            layers.SeparableConv1D,
        ),
        (
            layers.Conv2DTranspose,
            layers.DepthwiseConv2D,
            layers.SeparableConv2D,
        ),
    ][rank - 1]
    which = data.draw(st.integers(0, 2))
    options = {} if which == 0 else {"depth_multiplier": strides}
    first = () if which == 1 else (data.draw(st.integers(1, 4)),)
    layer = kinds[which](
        *first, kernel, strides=strides, padding=padding, **options
    )
    check(layer, (*size, channels))


@some
@given(
    st.sampled_from(["abc,cd->abd", "abc,cde->abde", "abc,bcd->abd"]),
    st.lists(st.integers(1, 6), min_size=2, max_size=2),
    st.lists(st.integers(1, 6), min_size=2, max_size=2),
)
def test_einsum(equation: str, shape: list[int], outer: list[int]) -> None:
    output = equation.split("->")[1]
    sizes = dict(zip("bcde", [*shape, *outer], strict=True))
    layer = layers.EinsumDense(
        equation, tuple(sizes[a] for a in output[1:]), bias_axes=output[-1]
    )
    check(layer, tuple(shape))


@some
@given(st.data(), st.integers(1, 12), st.integers(1, 6), st.integers(1, 9))
def test_embedding(data: Any, words: int, width: int, steps: int) -> None:
    keras.utils.set_random_seed(1)
    inputs = keras.Input((steps,), dtype="int32")
    table = layers.Embedding(words, width, mask_zero=data.draw(st.booleans()))
    hidden = layers.Dense(2)(layers.GlobalAveragePooling1D()(table(inputs)))
    model = compiled(keras.Model(inputs, hidden))
    draws = st.lists(
        st.integers(0, words - 1), min_size=3 * steps, max_size=3 * steps
    )
    ids = np.reshape(data.draw(draws), (3, steps))
    y = np.random.default_rng(1).standard_normal((3, 2))
    assert_same(model, ids, y, only=("identity", "both"))


@some
@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=3),
    st.integers(1, 3),
    st.integers(1, 4),
    st.sampled_from(["layer", "rms", "group", "prelu"]),
)
def test_normalization(
    shape: list[int], groups: int, width: int, kind: str
) -> None:
    channels = groups * width
    # One number, normalised, has a gradient of rounding errors alone.
    assume(kind == "prelu" or width > 1)
    if kind == "group":
        assume(math.prod(shape) * width > 2)
    layer = {
        "layer": lambda: layers.LayerNormalization(epsilon=0.1),
        "rms": lambda: layers.RMSNormalization(epsilon=0.1),
        "group": lambda: layers.GroupNormalization(groups, epsilon=0.1),
        "prelu": layers.PReLU,
    }[kind]()
    check(layer, (*shape, channels))


@some
@given(
    st.sampled_from([layers.SimpleRNN, layers.LSTM, layers.GRU]),
    st.integers(1, 5),
    st.integers(1, 4),
    st.integers(1, 4),
    st.booleans(),
)
def test_recurrent(
    kind: Any, steps: int, features: int, units: int, sequences: bool
) -> None:
    layer = kind(units, return_sequences=sequences)
    check(layer, (steps, features), fallbacks=None)


@some
@given(st.integers(1, 3), st.integers(1, 4), st.integers(1, 6))
def test_attention(heads: int, width: int, steps: int) -> None:
    class Itself(layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.attention = layers.MultiHeadAttention(heads, width)

        def build(self, shape: Any) -> None:
            self.attention.build(shape, shape)

        def call(self, inputs: Any) -> Any:
            return self.attention(inputs, inputs)

    check(Itself(), (steps, 5))
