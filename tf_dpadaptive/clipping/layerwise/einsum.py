"""EinsumDense, and with it every kind of attention in Keras and keras-hub.

Each letter of the equation plays one part, by where it appears: in input,
kernel and output (a group), in input and kernel (a matrix row), in kernel and
output (a column), in input and output (a step).
"""

import keras
import tensorflow as tf

from tf_dpadaptive.clipping.layerwise.forms import (
    Formed,
    MatrixView,
    Outer,
    sum_to,
)
from tf_dpadaptive.clipping.layerwise.registry import (
    Contributions,
    NotCovered,
    Use,
    rule,
)


@rule(keras.layers.EinsumDense, before="activation")
def einsum_dense(use: Use) -> Contributions:
    """g_W = the einsum of input and output gradient, over the steps."""
    layer, delta = use.layer, use.gradient
    if layer.bias is not None:
        yield layer.bias, Formed(sum_to(delta, layer.bias.shape))
    inputs = tf.cast(use.inputs, tf.float32)
    source, kernel, target = _letters(layer.equation, inputs.shape.rank)
    if not layer.lora_enabled:
        form = contraction(
            (source, kernel, target), inputs, delta, layer._kernel.shape
        )
        yield layer._kernel, form
        return
    last, rank = kernel[-1], _unused(source + kernel + target)
    if last not in target or last in source:
        raise NotCovered("LoRA's last axis is not an axis of the output")
    ratio = layer.lora_alpha / layer.lora_rank
    first, second = layer.lora_kernel_a, layer.lora_kernel_b
    short = kernel[:-1] + rank
    narrow = target.replace(last, rank)
    back = tf.einsum(
        f"{target},{rank}{last}->{narrow}", delta, ratio * use.value(second)
    )
    yield (
        first,
        contraction((source, short, narrow), inputs, back, first.shape),
    )
    forth = tf.einsum(
        f"{source},{short}->{narrow}", inputs, ratio * use.value(first)
    )
    yield (
        second,
        contraction((narrow, rank + last, target), forth, delta, second.shape),
    )


def contraction(
    letters: tuple[str, str, str],
    inputs: tf.Tensor,
    delta: tf.Tensor,
    shape: tuple[int, ...],
) -> Outer:
    """Returns the kernel's gradient under an einsum.

    Args:
        letters: Those of input, kernel and output; the first of input and
            output is the example.
        inputs: The input.
        delta: The gradient of the output.
        shape: The kernel's shape.
    """
    source, kernel, target = letters
    for term in letters:
        if len(set(term)) != len(term):
            raise NotCovered(f"a letter comes twice in {term!r}")
    example = source[0]
    if target[0] != example or example in kernel:
        raise NotCovered(f"the first axis of {letters} is not the example")
    if set(kernel) - set(source) - set(target):
        raise NotCovered(f"an axis of the kernel is summed in {letters}")
    summed = [i for i, c in enumerate(source) if c not in kernel + target]
    if summed:
        inputs = tf.reduce_sum(inputs, summed)
        source = "".join(c for c in source if c in kernel + target)
    groups = [c for c in kernel if c in source and c in target]
    rows = [c for c in kernel if c in source and c not in target]
    columns = [c for c in kernel if c not in source]
    steps = [c for c in source[1:] if c not in kernel]
    size = dict(zip(kernel, shape, strict=True))
    laid_out = [*groups, *rows, *columns]
    view = MatrixView(
        tuple(size[c] for c in groups),
        tuple(size[c] for c in rows),
        tuple(size[c] for c in columns),
        tuple(laid_out.index(c) for c in kernel),
    )
    parts = (groups, steps)
    return Outer(
        _laid_out(inputs, source, (*parts, rows)),
        _laid_out(delta, target, (*parts, columns)),
        view,
    )


def _laid_out(
    tensor: tf.Tensor, letters: str, parts: tuple[list[str], ...]
) -> tf.Tensor:
    """Transposes to (example, *parts), and makes each part one dimension."""
    order = [0, *(letters.index(c) for part in parts for c in part)]
    if order != sorted(order):
        tensor = tf.transpose(tensor, order)
    static, dynamic = tensor.shape, tf.shape(tensor)
    sizes, start = [dynamic[0]], 1
    for part in parts:
        stop = start + len(part)
        known = static[start:stop]
        if known.is_fully_defined():
            sizes.append(known.num_elements())
        else:
            sizes.append(tf.reduce_prod(dynamic[start:stop]))
        start = stop
    return tf.ensure_shape(
        tf.reshape(tensor, sizes),
        [static[0], *(s if isinstance(s, int) else None for s in sizes[1:])],
    )


def _letters(equation: str, rank: int) -> tuple[str, str, str]:
    """Letters of input, kernel and output, with an ellipsis written out."""
    source, rest = equation.replace(" ", "").split(",")
    kernel, target = rest.split("->")
    if "..." in source:
        hidden = ""
        for _ in range(rank - len(source.replace("...", ""))):
            hidden += _unused(source + kernel + target + hidden)
        source = source.replace("...", hidden)
        target = target.replace("...", hidden)
    return source, kernel, target


def _unused(letters: str) -> str:
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
    return next(c for c in alphabet if c not in letters)
