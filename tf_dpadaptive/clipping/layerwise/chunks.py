"""Loops that bound memory: over chunks of examples, over tiles of a matrix.

A loop runs one piece after the other; without a need for pieces there is none.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

CHUNK_BYTES = 16 * 2**20
"""What one piece of formed per-example gradients may take."""

KEPT_FLOATS = 4 * 2**20
"""Formed gradients of up to this many numbers are kept for the sum."""


def static_rows(tensors: Any) -> int | None:
    """Number of examples, where it is known while tracing."""
    return tf.nest.flatten(tensors)[0].shape[0]


def over_examples(
    function: Callable[[Any], tf.Tensor],
    tensors: Any,
    bytes_each: int,
    *,
    budget: int = CHUNK_BYTES,
) -> tf.Tensor:
    """Returns `function(tensors)`, worked out some examples at a time.

    Args:
        function: From tensors with one row an example to one float32 (n,).
        tensors: A structure of such tensors.
        bytes_each: What an example takes inside `function`.
        budget: Bytes that a piece may take.
    """
    size = max(1, budget // bytes_each)

    def looped() -> tf.Tensor:
        pieces, width, shaped, rows = _cut(tensors, size)
        results = tf.map_fn(
            lambda piece: tf.ensure_shape(function(piece), [width]),
            shaped,
            fn_output_signature=tf.TensorSpec([width], tf.float32),
            parallel_iterations=1,
        )
        return tf.reshape(results, [pieces * width])[:rows]

    return _all_or(size, tensors, lambda: function(tensors), looped)


def sum_over_examples(
    function: Callable[[Any], tf.Tensor],
    tensors: Any,
    bytes_each: int,
    shape: tuple[int, ...],
    *,
    budget: int = CHUNK_BYTES,
) -> tf.Tensor:
    """Returns `function(tensors)`, a sum over examples, in pieces.

    Args:
        function: From tensors to the float32 sum over their examples.
        tensors: A structure of tensors with one row an example. Rows of
            zeros are appended: they must add nothing.
        bytes_each: What an example takes inside `function`.
        shape: Shape of the sum.
        budget: Bytes that a piece may take.
    """
    size = max(1, budget // bytes_each)

    def looped() -> tf.Tensor:
        pieces, _, shaped, _ = _cut(tensors, size)

        def body(i: tf.Tensor, total: tf.Tensor) -> tuple[Any, Any]:
            piece = tf.nest.map_structure(lambda t: t[i], shaped)
            return i + 1, total + function(piece)

        return tf.while_loop(
            lambda i, _: i < pieces,
            body,
            (tf.constant(0), tf.zeros(shape)),
            parallel_iterations=1,
            maximum_iterations=pieces,
        )[1]

    return _all_or(size, tensors, lambda: function(tensors), looped)


def _all_or(
    size: int,
    tensors: Any,
    at_once: Callable[[], tf.Tensor],
    looped: Callable[[], tf.Tensor],
) -> tf.Tensor:
    """No loop where the examples fit; decided while running if need be."""
    static = static_rows(tensors)
    if static is not None:
        return at_once() if static <= size else looped()
    rows = tf.shape(tf.nest.flatten(tensors)[0])[0]
    return tf.cond(rows <= size, at_once, looped)


def over_tiles(
    function: Callable[[Any, int], tf.Tensor], size: int, tile: int
) -> tf.Tensor:
    """Returns Σ function(start, width) over the tiles of an axis.

    Args:
        function: From the first index (int or int32 scalar) and the static
            width of a tile to a float32 tensor, of one shape for all.
        size: Length of the axis.
        tile: Width of a tile; the last one may be narrower.
    """
    full, rest = divmod(size, tile)
    total = function(full * tile, rest) if rest else None
    if full == 0 and total is not None:
        return total
    if total is None:
        full -= 1
        total = function(full * tile, tile)
    if full == 0:
        return total
    _, total = tf.while_loop(
        lambda i, _: i < full,
        lambda i, sum_: (i + 1, sum_ + function(i * tile, tile)),
        (tf.constant(0), total),
        parallel_iterations=1,
        maximum_iterations=full,
    )
    return total


def _cut(tensors: Any, size: int) -> tuple[Any, int, Any, Any]:
    """Returns (pieces, rows a piece, reshaped tensors, all rows)."""
    static = static_rows(tensors)
    if static is None:
        rows = tf.shape(tf.nest.flatten(tensors)[0])[0]
    else:
        rows, size = static, _even(static, size)
    pieces = (rows + size - 1) // size

    def cut(tensor: tf.Tensor) -> tf.Tensor:
        if static is None or static % size != 0:
            widths = [[0, pieces * size - rows]]
            widths += [[0, 0]] * (tensor.shape.rank - 1)
            tensor = tf.pad(tensor, widths)
        tail = tf.shape(tensor)[1:]
        shaped = tf.reshape(tensor, tf.concat([[pieces, size], tail], 0))
        return tf.ensure_shape(shaped, [None, size, *tensor.shape[1:]])

    return pieces, size, tf.nest.map_structure(cut, tensors), rows


def _even(rows: int, size: int) -> int:
    """The largest divisor of `rows` in (size/2, size], or `size`."""
    for candidate in range(size, size // 2, -1):
        if rows % candidate == 0:
            return candidate
    return size
