"""Per-example gradients of many examples at once by `tf.vectorized_map`."""

from collections.abc import Sequence

import tensorflow as tf

from tf_dpadaptive.clipping.clip import clip_and_sum
from tf_dpadaptive.clipping.engine import Chunk, ClippedSum
from tf_dpadaptive.clipping.example import ExampleLoss
from tf_dpadaptive.clipping.geometry import Geometry
from tf_dpadaptive.clipping.rows_at_once import rows_at_once


class VectorizedEngine:
    """Holds the gradients of all rows of a chunk at once.

    Memory: rows × parameters × 4 bytes. An operation without a vectorized form
    raises instead of falling back to a slow loop.
    """

    name = "vectorized"

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
        rows = rows_at_once(
            lambda row: self._example(values, row.batch, row.seeds), chunk
        )
        total, norms = clip_and_sum(
            rows.gradients, chunk.real, clip_norm, geometry
        )
        counters = [
            tf.reduce_sum(_only(chunk.real, c), 0) for c in rows.counters
        ]
        return ClippedSum(
            total, norms, rows.loss, rows.outputs, rows.masks, counters
        )


def _only(real: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    shape = [-1] + [1] * (rows.shape.rank - 1)
    return tf.where(tf.reshape(real, shape), rows, tf.zeros_like(rows))
