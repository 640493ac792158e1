"""Recurrent layers: what enters the gates at step t is x_t W + h_{t-1} U + b.

The loop over steps can't be looked into. The layer is run once more on inputs
(x, p) with kernel (W; 1), where p = 0 has one number for each gate and step: p
is added to what enters the gates, so that its gradient is δ_t, from which all
else follows: g_W = Σ_t x_t ⊗ δ_t, g_U = Σ_t h_{t-1} ⊗ δ_t, g_b = Σ_t δ_t.
"""

from typing import Any

import keras
import tensorflow as tf

from tf_dpadaptive.clipping.layerwise.forms import (
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


@rule(keras.layers.SimpleRNN, keras.layers.LSTM, whole=True)
def recurrent(use: Use) -> Contributions:
    """Gates that see h_{t-1} U as it is."""
    cell = use.layer.cell
    inputs, before, delta = _steps(use)
    yield cell.kernel, outer(inputs, delta)
    yield cell.recurrent_kernel, outer(before, delta)
    if cell.use_bias:
        yield cell.bias, Formed(tf.reduce_sum(delta, 1))


@rule(keras.layers.GRU, whole=True)
def gated_recurrent(use: Use) -> Contributions:
    """The candidate sees r ⊙ (h U + b), or (r ⊙ h) U without `reset_after`."""
    cell = use.layer.cell
    inputs, before, delta = _steps(use)
    units = cell.units
    yield cell.kernel, outer(inputs, delta)
    reset = _reset_gate(use, inputs, before)
    update, forget, candidate = tf.split(delta, 3, -1)
    if cell.reset_after:
        inner = tf.concat([update, forget, candidate * reset], -1)
        yield cell.recurrent_kernel, outer(before, inner)
        if cell.use_bias:
            both = [tf.reduce_sum(t, 1) for t in (delta, inner)]
            yield cell.bias, Formed(tf.stack(both, 1))
        return
    left = tf.stack([before, before, before * reset], 1)
    right = tf.stack([update, forget, candidate], 1)
    view = MatrixView((3,), (units,), (units,), (1, 0, 2), (units, 3 * units))
    yield cell.recurrent_kernel, Outer(left, right, view)
    if cell.use_bias:
        yield cell.bias, Formed(tf.reduce_sum(delta, 1))


def _steps(use: Use) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns x_t, h_{t-1} and δ_t, each (n, t, ...), in the order of steps."""
    layer, cell = use.layer, use.layer.cell
    inputs = use.inputs
    start = use.argument("initial_state")
    if layer.dropout or layer.recurrent_dropout:
        raise NotCovered("it drops inputs or states within its loop")
    if layer.stateful or layer.zero_output_for_mask:
        raise NotCovered("its outputs are not its states")
    if start is not None and use.argument("mask") is not None:
        raise NotCovered("it has both a mask and an initial state")
    gates = cell.kernel.shape[1]
    added = tf.zeros(
        tf.concat([tf.shape(inputs)[:2], [gates]], 0), inputs.dtype
    )
    added = tf.ensure_shape(added, [*inputs.shape[:2], gates])
    kernel = use.values.get(id(cell.kernel), cell.kernel.value)
    wide = tf.concat([kernel, tf.eye(gates, dtype=kernel.dtype)], 0)
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(added)
        outputs = _all_states(
            use, {id(cell.kernel): wide}, tf.concat([inputs, added], -1)
        )
        states = outputs[0]
        if not layer.return_sequences:
            outputs = [states[:, -1], *outputs[1:]]
    pairs = [
        (t, g)
        for t, g in zip(outputs, use.gradients, strict=True)
        if g is not None
    ]
    targets, gradients = zip(*pairs, strict=True)
    delta = tape.gradient(
        list(targets), added, output_gradients=list(gradients)
    )
    if start is None:
        first = tf.zeros_like(states[:, 0])
    else:
        first = tf.cast(tf.nest.flatten(start)[0], states.dtype)
    before = tf.concat([first[:, None], states[:, :-1]], 1)
    inputs, before, delta = (
        tf.cast(t, tf.float32) for t in (inputs, before, delta)
    )
    if layer.go_backwards:
        # States come in the order of steps, inputs (and so δ) in their own.
        inputs, delta = inputs[:, ::-1], delta[:, ::-1]
    return inputs, before, delta


def _all_states(
    use: Use, values: dict[int, tf.Tensor], inputs: tf.Tensor
) -> list[Any]:
    """The layer's outputs, with the states of all steps first."""
    settings = vars(use.layer)
    asked = settings["return_sequences"]
    settings["return_sequences"] = True
    try:
        return tf.nest.flatten(use.again(values, inputs))
    finally:
        settings["return_sequences"] = asked


def _reset_gate(use: Use, inputs: tf.Tensor, before: tf.Tensor) -> tf.Tensor:
    """r of every step, from what enters it."""
    cell = use.layer.cell
    part = slice(cell.units, 2 * cell.units)
    entering = tf.tensordot(inputs, use.value(cell.kernel)[:, part], 1)
    entering += tf.tensordot(
        before, use.value(cell.recurrent_kernel)[:, part], 1
    )
    if cell.use_bias:
        bias = tf.reshape(use.value(cell.bias), [-1, 3 * cell.units])
        entering += tf.reduce_sum(bias, 0)[part]
    return cell.recurrent_activation(entering)
