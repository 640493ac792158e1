"""Dense layers: z = x W + b, with LoRA where W is W₀ + (α/r) A B."""

import keras
import tensorflow as tf

from tf_dpadaptive.clipping.layerwise.forms import Formed, outer, sum_to
from tf_dpadaptive.clipping.layerwise.registry import Contributions, Use, rule


@rule(keras.layers.Dense, before="activation")
def dense(use: Use) -> Contributions:
    """g_W = Σ_t x_t ⊗ δ_t, g_b = Σ_t δ_t."""
    layer, delta = use.layer, use.gradient
    if layer.bias is not None:
        yield layer.bias, Formed(sum_to(delta, layer.bias.shape))
    if not layer.lora_enabled:
        yield layer._kernel, outer(use.inputs, delta)
        return
    ratio = layer.lora_alpha / layer.lora_rank
    first, second = layer.lora_kernel_a, layer.lora_kernel_b
    inputs = tf.cast(use.inputs, tf.float32)
    back = tf.tensordot(delta, ratio * use.value(second), [[-1], [1]])
    yield first, outer(inputs, back)
    forth = tf.tensordot(inputs, ratio * use.value(first), 1)
    yield second, outer(forth, delta)
