"""Convolutions: at every position a matrix product with what a window holds."""

import math
from typing import Any

import keras
import tensorflow as tf

from tf_dpadaptive.clipping.layerwise.forms import (
    Form,
    Formed,
    MatrixView,
    Outer,
    outer,
)
from tf_dpadaptive.clipping.layerwise.registry import (
    Contributions,
    NotCovered,
    Use,
    rule,
)
from tf_dpadaptive.clipping.layerwise.windows import (
    few_channels,
    products_by_kernel_row,
    windows,
)


@rule(
    keras.layers.Conv1D,
    keras.layers.Conv2D,
    keras.layers.Conv3D,
    before="activation",
)
def convolution(use: Use) -> Contributions:
    """g_K = Σ_t window_t(x) ⊗ δ_t, in each group of channels."""
    layer = use.layer
    inputs, delta = _channels_last(use)
    if layer.bias is not None:
        yield layer.bias, _bias(delta)
    if _by_kernel_row(layer, inputs, delta):
        formed = products_by_kernel_row(
            inputs,
            _steps(delta, 1),
            layer.kernel_size,
            layer.strides,
            layer.dilation_rate,
            layer.padding,
        )
        yield layer._kernel, Formed(formed)
        return
    seen = _windows(layer, inputs)
    if layer.lora_enabled:
        if layer.groups != 1:
            raise NotCovered("LoRA of a grouped convolution")
        ratio = layer.lora_alpha / layer.lora_rank
        first, second = layer.lora_kernel_a, layer.lora_kernel_b
        seen = _steps(seen, 2)
        back = tf.tensordot(delta, ratio * use.value(second), [[-1], [1]])
        view = MatrixView.plain(first.shape[:-1], first.shape[-1:])
        yield first, outer(seen, _steps(back, 1), view)
        down = tf.reshape(ratio * use.value(first), [-1, first.shape[-1]])
        yield second, outer(tf.tensordot(seen, down, 1), _steps(delta, 1))
        return
    kernel, groups = layer._kernel, layer.groups
    if groups == 1:
        view = MatrixView.plain(kernel.shape[:-1], kernel.shape[-1:])
        yield kernel, outer(_steps(seen, 2), _steps(delta, 1), view)
        return
    *sizes, channels, filters = kernel.shape
    yield (
        kernel,
        _grouped(
            tf.reshape(seen, [-1, *seen.shape[1:3], groups, channels]),
            tf.reshape(delta, [-1, seen.shape[1], groups, filters // groups]),
            MatrixView(
                (groups,),
                (*sizes, channels),
                (filters // groups,),
                (*range(1, len(sizes) + 2), 0, len(sizes) + 2),
                tuple(kernel.shape),
            ),
        ),
    )


@rule(
    keras.layers.Conv1DTranspose,
    keras.layers.Conv2DTranspose,
    keras.layers.Conv3DTranspose,
    before="activation",
)
def transposed_convolution(use: Use) -> Contributions:
    """Input and output change places: g_K = Σ_t window_t(δ) ⊗ x_t."""
    layer = use.layer
    inputs, delta = _channels_last(use)
    if layer.bias is not None:
        yield layer.bias, _bias(delta)
    seen = _windows(layer, delta)
    if seen.shape[1] != math.prod(inputs.shape[1:-1]):
        raise NotCovered("its output has more windows than its input points")
    kernel = layer.kernel
    view = MatrixView.plain(kernel.shape[:-1], kernel.shape[-1:])
    yield kernel, outer(_steps(seen, 2), _steps(inputs, 1), view)


@rule(
    keras.layers.DepthwiseConv1D,
    keras.layers.DepthwiseConv2D,
    before="activation",
)
def depthwise_convolution(use: Use) -> Contributions:
    """Each channel is a group."""
    layer = use.layer
    inputs, delta = _channels_last(use)
    if layer.bias is not None:
        yield layer.bias, _bias(delta)
    yield layer.kernel, _depthwise(layer, inputs, delta, layer.kernel.shape)


@rule(
    keras.layers.SeparableConv1D,
    keras.layers.SeparableConv2D,
    before="activation",
)
def separable_convolution(use: Use) -> Contributions:
    """A depthwise convolution, then a product at every point."""
    layer = use.layer
    inputs, delta = _channels_last(use)
    if layer.bias is not None:
        yield layer.bias, _bias(delta)
    deep, point = layer.depthwise_kernel, layer.pointwise_kernel
    between = keras.ops.depthwise_conv(
        inputs,
        use.value(deep),
        strides=layer.strides,
        padding=layer.padding,
        dilation_rate=layer.dilation_rate,
        data_format="channels_last",
    )
    view = MatrixView.plain(point.shape[:-1], point.shape[-1:])
    yield point, outer(_steps(between, 1), _steps(delta, 1), view)
    across = tf.reshape(use.value(point), point.shape[-2:])
    back = tf.tensordot(delta, across, [[-1], [1]])
    yield deep, _depthwise(layer, inputs, back, deep.shape)


def _depthwise(
    layer: Any, inputs: tf.Tensor, delta: tf.Tensor, shape: tuple[int, ...]
) -> Form:
    """The depthwise kernel's gradient."""
    *sizes, channels, multiplier = shape
    seen = _windows(layer, inputs)
    return _grouped(
        tf.expand_dims(seen, 4),
        tf.reshape(delta, [-1, seen.shape[1], channels, multiplier]),
        MatrixView(
            (channels,),
            tuple(sizes),
            (multiplier,),
            (*range(1, len(sizes) + 1), 0, len(sizes) + 1),
        ),
    )


def _by_kernel_row(layer: Any, inputs: tf.Tensor, delta: tf.Tensor) -> bool:
    """Whether to form the kernel's gradients at once, row by row.

    With few channels they are fewer numbers than all the windows.
    """
    if layer.rank != 2 or layer.groups != 1 or layer.lora_enabled:
        return False
    positions = math.prod(delta.shape[1:-1])
    return few_channels(inputs) and positions >= delta.shape[-1]


def _grouped(seen: tf.Tensor, delta: tf.Tensor, view: MatrixView) -> Outer:
    """From windows (n, t, k, groups, c) and δ (n, t, groups, f)."""
    groups, rows, _ = view.matrix
    left = tf.transpose(seen, [0, 3, 1, 2, 4])
    left = tf.reshape(left, [-1, groups, seen.shape[1], rows])
    return Outer(left, tf.transpose(delta, [0, 2, 1, 3]), view)


def _windows(layer: Any, tensor: tf.Tensor) -> tf.Tensor:
    """What the layer's kernel meets: (n, positions, kernel, channels)."""
    return windows(
        tensor,
        layer.kernel_size,
        layer.strides,
        layer.dilation_rate,
        layer.padding,
    )


def _channels_last(use: Use) -> tuple[tf.Tensor, tf.Tensor]:
    """Float32 inputs and output gradients, channels last."""
    inputs, delta = tf.cast(use.inputs, tf.float32), use.gradient
    if inputs.shape.rank != use.layer.rank + 2:
        raise NotCovered("its input has more axes than one for the examples")
    if use.layer.data_format == "channels_first":
        order = [0, *range(2, inputs.shape.rank), 1]
        inputs, delta = (tf.transpose(t, order) for t in (inputs, delta))
    for tensor in (inputs, delta):
        if not tensor.shape[1:].is_fully_defined():
            raise NotCovered("the size of its input is not known beforehand")
    return inputs, delta


def _bias(delta: tf.Tensor) -> Formed:
    return Formed(tf.reduce_sum(delta, list(range(1, delta.shape.rank - 1))))


def _steps(tensor: tf.Tensor, inner: int) -> tf.Tensor:
    """(n, steps, last): the `inner` last axes are one, those before another."""
    shape = tensor.shape[1:].as_list()
    cut = len(shape) - inner
    return tf.reshape(
        tensor, [-1, math.prod(shape[:cut]), math.prod(shape[cut:])]
    )
