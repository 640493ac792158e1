"""Sliding windows over an image, a sequence or a volume: what a kernel meets.

All tensors are channels-last, with known spatial sizes.
"""

import itertools
import math
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

_FEW_CHANNELS = 8
"""Below this many numbers in a row, picking rows one by one is slow."""


def windows(
    tensor: tf.Tensor,
    kernel: Sequence[int],
    strides: Sequence[int],
    dilation: Sequence[int],
    padding: str,
) -> tf.Tensor:
    """Returns (n, positions, prod(kernel), channels).

    Args:
        tensor: (n, *spatial, channels).
        kernel: Window size on each spatial axis.
        strides: Steps between windows.
        dilation: Steps within a window.
        padding: "same", "valid" or "causal".
    """
    tensor = _padded(tensor, kernel, strides, dilation, padding)
    spatial, channels = tensor.shape[1:-1].as_list(), tensor.shape[-1]
    starts = [
        np.arange((size - (k - 1) * d - 1) // s + 1) * s
        for size, k, s, d in zip(
            spatial, kernel, strides, dilation, strict=True
        )
    ]
    offsets = [np.arange(k) * d for k, d in zip(kernel, dilation, strict=True)]
    if channels >= _FEW_CHANNELS or kernel[-1] == 1:
        return _picked(tensor, starts, offsets)
    # First windows along the last axis, then whole rows of them.
    rows, width, count = _along_last_axis(tensor, kernel, strides, dilation)
    if len(spatial) > 1:
        rows = _picked(rows, starts[:-1], offsets[:-1])
    before = math.prod(len(s) for s in starts[:-1])
    inside = math.prod(kernel[:-1])
    rows = tf.reshape(rows, [-1, before, inside, count, width])
    rows = tf.transpose(rows, [0, 1, 3, 2, 4])
    return tf.reshape(rows, [-1, before * count, inside * kernel[-1], channels])


def products_by_kernel_row(
    tensor: tf.Tensor,
    delta: tf.Tensor,
    kernel: Sequence[int],
    strides: Sequence[int],
    dilation: Sequence[int],
    padding: str,
) -> tf.Tensor:
    """Returns Σ_t window_t ⊗ δ_t of images, one row of the kernel at a time.

    With few channels this takes half the time and a fraction of the memory of
    making all windows.

    Args:
        tensor: (n, height, width, channels).
        delta: (n, positions, filters).
        kernel: Window size on each axis.
        strides: Steps between windows.
        dilation: Steps within a window.
        padding: "same" or "valid".

    Returns:
        float32 (n, kernel height, kernel width · channels, filters).
    """
    tensor = _padded(tensor, kernel, strides, dilation, padding)
    height, step = tensor.shape[1], strides[0]
    out = (height - (kernel[0] - 1) * dilation[0] - 1) // step + 1
    rows, width, count = _along_last_axis(tensor, kernel, strides, dilation)
    # Rows of one phase of the stride lie side by side.
    more = -height % step
    rows = tf.pad(rows, [[0, 0], [0, more], [0, 0]]) if more else rows
    rows = tf.reshape(rows, [-1, (height + more) // step, step, count * width])
    formed = []
    for offset in range(0, kernel[0] * dilation[0], dilation[0]):
        start, phase = divmod(offset, step)
        seen = tf.reshape(
            rows[:, start : start + out, phase], [-1, out * count, width]
        )
        formed.append(tf.matmul(seen, delta, transpose_a=True))
    return tf.stack(formed, 1)


def few_channels(tensor: tf.Tensor) -> bool:
    """Whether the channels of a tensor are too few to be picked singly."""
    return tensor.shape[-1] < _FEW_CHANNELS


def _along_last_axis(
    tensor: tf.Tensor,
    kernel: Sequence[int],
    strides: Sequence[int],
    dilation: Sequence[int],
) -> tuple[tf.Tensor, int, int]:
    """Windows along the last axis, by a convolution with an identity.

    Returns them as (n, *other axes, count · width), with width and count.
    """
    spatial, channels = tensor.shape[1:-1].as_list(), tensor.shape[-1]
    width = kernel[-1] * channels
    identity = tf.reshape(
        tf.eye(width, dtype=tensor.dtype), [kernel[-1], channels, width]
    )
    rows = tf.nn.conv1d(
        tf.reshape(tensor, [-1, spatial[-1], channels]),
        identity,
        strides[-1],
        "VALID",
        dilations=dilation[-1],
    )
    count = rows.shape[1]
    shape = [-1, *spatial[:-1], count * width]
    return tf.reshape(rows, shape), width, count


def _picked(
    tensor: tf.Tensor,
    starts: Sequence[np.ndarray],
    offsets: Sequence[np.ndarray],
) -> tf.Tensor:
    """Picks positions (start + offset) on all axes: (n, starts, offsets, c)."""
    spatial, channels = tensor.shape[1:-1].as_list(), tensor.shape[-1]
    index = np.array(
        [
            [
                np.ravel_multi_index(tuple(np.add(start, offset)), spatial)
                for offset in itertools.product(*offsets)
            ]
            for start in itertools.product(*starts)
        ],
        np.int32,
    )
    flat = tf.reshape(tensor, [-1, math.prod(spatial), channels])
    if index.size == math.prod(spatial) and np.all(np.diff(index[:, 0]) == 1):
        return tf.expand_dims(flat, 2)  # a kernel of one point
    return tf.gather(flat, index, axis=1)


def _padded(
    tensor: tf.Tensor,
    kernel: Sequence[int],
    strides: Sequence[int],
    dilation: Sequence[int],
    padding: str,
) -> tf.Tensor:
    """Pads so that all windows lie inside."""
    if padding == "valid":
        return tensor
    widths = [[0, 0]]
    for size, k, s, d in zip(
        tensor.shape[1:-1], kernel, strides, dilation, strict=True
    ):
        reach = (k - 1) * d
        if padding == "causal":
            widths.append([reach, 0])
        else:
            count = -(-size // s)
            total = max((count - 1) * s + reach + 1 - size, 0)
            widths.append([total // 2, total - total // 2])
    widths.append([0, 0])
    return tf.pad(tensor, widths) if np.any(widths) else tensor
