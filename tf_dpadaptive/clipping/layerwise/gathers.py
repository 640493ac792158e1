"""Gradients of batched look-ups that stay within their example.

TensorFlow differentiates `tf.gather(x, ids, batch_dims=1)` by adding
`row * size` to the ids. An id outside of its row names a place in the next row:
where the look-up itself does not raise (XLA, GPUs), the gradient of one example
would flow into another. Here such an id has no gradient.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import array_grad


@contextlib.contextmanager
def apart() -> Iterator[None]:
    """Within it gradients are taken (while tracing, that is traced) so."""
    module: Any = array_grad
    plain = module._BatchGatherGrad

    def within(
        shape: Any, values: Any, ids: Any, batch_dims: int, size: Any
    ) -> Any:
        values = tf.convert_to_tensor(values)
        inside = (ids >= 0) & (ids < tf.cast(size, ids.dtype))
        more = values.shape.rank - ids.shape.rank
        mask = tf.reshape(
            inside, tf.concat([tf.shape(ids), tf.ones(more, tf.int32)], 0)
        )
        values = tf.where(mask, values, tf.zeros_like(values))
        ids = tf.where(inside, ids, tf.zeros_like(ids))
        return plain(shape, values, ids, batch_dims, size)

    module._BatchGatherGrad = within
    try:
        yield
    finally:
        module._BatchGatherGrad = plain
