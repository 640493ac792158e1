"""Activations with weights."""

import keras
import tensorflow as tf

from tf_dpadaptive.clipping.layerwise.forms import Formed, sum_to
from tf_dpadaptive.clipping.layerwise.registry import Contributions, Use, rule


@rule(keras.layers.PReLU)
def prelu(use: Use) -> Contributions:
    """y = relu(x) - α relu(-x): g_α = -Σ δ ⊙ relu(-x)."""
    alpha = use.layer.alpha
    moved = -use.gradient * tf.nn.relu(-tf.cast(use.inputs, tf.float32))
    yield alpha, Formed(sum_to(moved, alpha.shape))
