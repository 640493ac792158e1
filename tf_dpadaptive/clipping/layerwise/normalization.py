"""Normalisations within an example: y = γ ⊙ h(x) + β.

h is the layer itself with γ = 1 and β = 0, whatever it normalises over.
"""

from typing import Any

import keras
import tensorflow as tf

from tf_dpadaptive.clipping.layerwise.forms import Formed, sum_to
from tf_dpadaptive.clipping.layerwise.registry import (
    Contributions,
    NotCovered,
    Use,
    rule,
)


@rule(keras.layers.LayerNormalization, keras.layers.GroupNormalization)
def normalization(use: Use) -> Contributions:
    """g_γ = Σ δ ⊙ h(x), g_β = Σ δ, over all axes but those of γ."""
    layer, delta = use.layer, use.gradient
    axes = layer.axis if isinstance(layer.axis, list) else [layer.axis]
    kept = {axis % delta.shape.rank for axis in axes}
    if 0 in kept:
        raise NotCovered("it normalizes over examples")
    summed = [i for i in range(1, delta.shape.rank) if i not in kept]
    if layer.gamma is not None:
        moved = delta * _normalized(use, layer.gamma, layer.beta)
        yield layer.gamma, Formed(tf.reduce_sum(moved, summed))
    if layer.beta is not None:
        yield layer.beta, Formed(tf.reduce_sum(delta, summed))


@rule(keras.layers.RMSNormalization)
def rms_normalization(use: Use) -> Contributions:
    """g_γ = Σ δ ⊙ h(x)."""
    layer = use.layer
    rank = use.gradient.shape.rank
    axes = layer.axis if isinstance(layer.axis, list) else [layer.axis]
    if any(axis % rank == 0 for axis in axes):
        raise NotCovered("it normalizes over examples")
    moved = use.gradient * _normalized(use, layer.scale, None)
    yield layer.scale, Formed(sum_to(moved, layer.scale.shape))


def _normalized(use: Use, gamma: Any, beta: Any) -> tf.Tensor:
    """The layer's output with γ = 1 and β = 0."""
    neutral = {id(gamma): tf.ones(gamma.shape, gamma.dtype)}
    if beta is not None:
        neutral[id(beta)] = tf.zeros(beta.shape, beta.dtype)
    return tf.cast(use.again(neutral), tf.float32)
