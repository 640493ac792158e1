"""What every clipping engine does, and how a large batch is cut into chunks.

An engine turns a batch into the sum of clipped per-example gradients. All
engines compute the same number; they differ in how many examples they hold at
once. Everything in a `ClippedSum` is raw until noise has been added to `total`.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import tensorflow as tf

from tf_dpadaptive.batch import Batch
from tf_dpadaptive.clipping.geometry import Geometry


class ClippedSum(NamedTuple):
    """The clipped sum of a batch, and what the step may show of it.

    Attributes:
        total: Float32 sums of clipped, transformed gradients, keyed by
            position of the trainable variable; no entry where the loss does
            not depend on it.
        norms: float32 (n,) norms before clipping, padding included.
        losses: float32 (n,) per-example losses, padding included.
        outputs: The model's outputs, leading size n.
        masks: Keras masks of the outputs by flat position.
        counters: Sums over real rows of what additive metrics gained.
    """

    total: dict[int, tf.Tensor]
    norms: tf.Tensor
    losses: tf.Tensor
    outputs: Any
    masks: dict[int, tf.Tensor]
    counters: list[tf.Tensor]


class Chunk(NamedTuple):
    """Rows that an engine takes at once, with their layer randomness.

    Attributes:
        batch: `Batch.without_none()`.
        real: bool (n,), False for padding.
        seeds: One int64 (n, 2) tensor a seed generator.
    """

    batch: Batch
    real: tf.Tensor
    seeds: Sequence[tf.Tensor]


class Engine(Protocol):
    """The seam of the clipping engines."""

    name: str

    def clipped_sum(
        self,
        values: Sequence[tf.Tensor],
        chunk: Chunk,
        clip_norm: tf.Tensor | float,
        geometry: Geometry,
    ) -> ClippedSum:
        """Returns the clipped sum of all rows of a chunk."""
        ...


def in_chunks(
    work: Callable[[Chunk], ClippedSum], chunk: Chunk, size: int | None
) -> ClippedSum:
    """Runs `work` over pieces of `size` rows and adds up their sums.

    Args:
        work: Clipped sum of one piece.
        chunk: All rows.
        size: Rows a piece; None takes all rows at once.

    Bounds memory only: the result is that of one piece with all rows.
    """
    rows = tf.shape(chunk.real)[0]
    static = chunk.real.shape[0]
    if size is None or (static is not None and static <= size):
        return work(chunk)
    if static is not None:
        # As few pieces, of equal size: the last is not padded for nothing.
        size = -(-static // -(-static // size))
    pieces = (rows + size - 1) // size
    padded = _pad(chunk, pieces * size - rows)
    shaped = tf.nest.map_structure(
        lambda t: tf.reshape(
            t, tf.concat([[pieces, size], tf.shape(t)[1:]], 0)
        ),
        padded,
    )

    def take(i: tf.Tensor) -> Chunk:
        return tf.nest.map_structure(
            lambda t, s: tf.ensure_shape(t[i], [size, *s.shape[1:]]),
            shaped,
            chunk,
        )

    signature = tf.nest.map_structure(
        lambda t: tf.TensorSpec([size, *t.shape[1:]], t.dtype), chunk
    )
    spec = _output_spec(work, signature)
    summed = lambda r: (r.total, r.counters)  # noqa: E731
    listed = lambda r: (r.norms, r.losses, r.outputs, r.masks)  # noqa: E731
    zeros = tf.nest.map_structure(
        lambda s: tf.zeros(s.shape, s.dtype), summed(spec)
    )
    arrays = tf.nest.map_structure(
        lambda s: tf.TensorArray(s.dtype, pieces, element_shape=s.shape),
        listed(spec),
    )

    def body(i: tf.Tensor, sums: Any, lists: Any) -> tuple[Any, Any, Any]:
        result = work(take(i))
        sums = tf.nest.map_structure(tf.add, sums, summed(result))
        lists = tf.nest.map_structure(
            lambda a, t: a.write(i, t), lists, listed(result)
        )
        return i + 1, sums, lists

    _, sums, lists = tf.while_loop(
        lambda i, *_: i < pieces,
        body,
        (tf.constant(0), zeros, arrays),
        parallel_iterations=1,
        maximum_iterations=pieces,
    )
    norms, losses, outputs, masks = tf.nest.map_structure(
        lambda a: a.concat()[:rows], lists
    )
    return ClippedSum(sums[0], norms, losses, outputs, masks, sums[1])


def _output_spec(work: Callable[[Chunk], ClippedSum], signature: Any) -> Any:
    """Shapes and dtypes of a piece's result, without running it."""
    traced = tf.function(lambda c: work(c), autograph=False)
    return traced.get_concrete_function(signature).structured_outputs


def _pad(chunk: Chunk, extra: tf.Tensor) -> Chunk:
    """Appends rows of zeros that are padding."""

    def grow(t: tf.Tensor) -> tf.Tensor:
        widths = [[0, extra]] + [[0, 0]] * (t.shape.rank - 1)
        return tf.pad(t, widths)

    return tf.nest.map_structure(grow, chunk)
