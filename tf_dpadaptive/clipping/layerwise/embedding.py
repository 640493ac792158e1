"""Look-ups: embeddings, reversible (tied) ones, positions; with LoRA.

A tied table has two uses, the look-up and the output projection: the engine
joins them, so that the norm is that of their sum.
"""

import keras
import tensorflow as tf

from tf_dpadaptive.clipping.layerwise.forms import (
    flat_steps,
    gather,
    outer,
)
from tf_dpadaptive.clipping.layerwise.registry import (
    Contributions,
    NotCovered,
    Use,
    rule,
)


@rule(keras.layers.Embedding)
def embedding(use: Use) -> Contributions:
    """Row ids_t of the table receives δ_t."""
    layer = use.layer
    ids = use.inputs
    if not isinstance(ids, tf.Tensor):
        raise NotCovered("its input is sparse or ragged")
    if ids.dtype != tf.int64:
        ids = tf.cast(ids, tf.int32)
    steps = [tf.shape(ids)[0], -1]
    if ids.shape[1:].is_fully_defined():
        steps[1] = ids.shape[1:].num_elements()
    ids = tf.reshape(ids, steps)
    looked_up = gather(ids, flat_steps(use.gradient), layer.input_dim)
    if not layer.lora_enabled:
        yield layer._embeddings, looked_up
        return
    ratio = layer.lora_alpha / layer.lora_rank
    first, second = layer.lora_embeddings_a, layer.lora_embeddings_b
    ids, delta, _ = looked_up
    back = tf.tensordot(delta, ratio * use.value(second), [[-1], [1]])
    yield first, looked_up._replace(rows=back)
    forth = tf.gather(ratio * use.value(first), ids)
    yield second, outer(forth, delta)


@rule(keras.layers.ReversibleEmbedding)
def reversible_embedding(use: Use) -> Contributions:
    """The look-up, or logits_t = E x_t: g_E = Σ_t δ_t ⊗ x_t."""
    layer = use.layer
    if not use.argument("reverse"):
        yield from embedding(use)
        return
    delta = use.gradient
    inputs = tf.cast(use.inputs, tf.float32)
    if layer.logit_soft_cap is not None:
        bounded = tf.cast(use.targets[0], tf.float32) / layer.logit_soft_cap
        delta = delta * (1 - tf.square(bounded))
    if not layer.tie_weights:
        yield layer.reverse_embeddings, outer(inputs, delta)
        return
    if not layer.lora_enabled:
        yield layer._embeddings, outer(delta, inputs)
        return
    ratio = layer.lora_alpha / layer.lora_rank
    first, second = layer.lora_embeddings_a, layer.lora_embeddings_b
    forth = tf.tensordot(inputs, ratio * use.value(second), [[-1], [1]])
    yield first, outer(delta, forth)
    back = tf.tensordot(delta, ratio * use.value(first), 1)
    yield second, outer(back, inputs)


@rule("keras_hub.src.layers.modeling.position_embedding.PositionEmbedding")
def position_embedding(use: Use) -> Contributions:
    """Row t of the table receives δ_t."""
    table = use.layer.position_embeddings
    delta = use.gradient
    positions = use.argument("positions")
    if positions is not None:
        if positions.shape.rank != 2 or delta.shape.rank != 3:
            raise NotCovered("its positions are not those of one sequence")
        ids = tf.broadcast_to(tf.cast(positions, tf.int32), tf.shape(delta)[:2])
        yield table, gather(ids, delta, table.shape[0])
        return
    if delta.shape.rank > 3:
        delta = tf.reduce_sum(delta, list(range(1, delta.shape.rank - 2)))
    start = tf.cast(use.argument("start_index"), tf.int32)
    ids = start + tf.range(tf.shape(delta)[1])
    ids = tf.broadcast_to(ids, tf.shape(delta)[:2])
    ids = tf.ensure_shape(ids, delta.shape[:2])
    yield table, gather(ids, delta, table.shape[0], distinct=True)
