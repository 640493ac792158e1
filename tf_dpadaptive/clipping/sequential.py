"""The reference engine: one example after the other, nothing clever.

Slow, and right by inspection: every other engine is tested against it.
"""

from collections.abc import Sequence

import tensorflow as tf

from tf_dpadaptive.clipping.clip import clip_and_sum
from tf_dpadaptive.clipping.engine import Chunk, ClippedSum, in_chunks
from tf_dpadaptive.clipping.example import ExampleLoss
from tf_dpadaptive.clipping.geometry import Geometry


class SequentialEngine:
    """Clips one example at a time; memory of a single example."""

    name = "sequential"

    def __init__(self, example: ExampleLoss) -> None:
        self._example = example

    def clipped_sum(
        self,
        values: Sequence[tf.Tensor],
        chunk: Chunk,
        clip_norm: tf.Tensor | float,
        geometry: Geometry,
    ) -> ClippedSum:
        """See `Engine.clipped_sum`."""

        def one(piece: Chunk) -> ClippedSum:
            row = tf.nest.map_structure(lambda t: tf.squeeze(t, 0), piece)
            result = self._example(values, row.batch, row.seeds)
            total, norms = clip_and_sum(
                {i: tf.expand_dims(g, 0) for i, g in result.gradients.items()},
                piece.real,
                clip_norm,
                geometry,
            )
            loss, outputs, masks = tf.nest.map_structure(
                lambda t: tf.expand_dims(t, 0),
                (result.loss, result.outputs, result.masks),
            )
            counters = [
                tf.where(row.real, c, tf.zeros_like(c)) for c in result.counters
            ]
            return ClippedSum(total, norms, loss, outputs, masks, counters)

        return in_chunks(one, chunk, 1)
