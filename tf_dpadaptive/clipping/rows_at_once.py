"""`tf.vectorized_map` whose rows never add to one another.

TensorFlow vectorizes a segment sum by adding `row * segments` to the ids. An id
outside the segments then names a segment of another row: the gradient of a
look-up of a token id >= the vocabulary would be booked as another example's
where the look-up itself does not raise (XLA, GPUs). Here such ids are dropped.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.ops.parallel_for import pfor

_OPERATIONS = (
    "UnsortedSegmentSum",
    "UnsortedSegmentMax",
    "UnsortedSegmentMin",
    "UnsortedSegmentProd",
)


def rows_at_once(function: Callable[[Any], Any], rows: Any) -> Any:
    """Returns the stacked results of `function` for every row.

    Args:
        function: From one row of `rows` to a structure of tensors.
        rows: A structure of tensors with one row an example.

    Raises:
        ValueError: for an operation without a vectorized form.
    """
    with _segments_apart():
        return tf.vectorized_map(function, rows, fallback_to_while_loop=False)


@contextlib.contextmanager
def _segments_apart() -> Iterator[None]:
    # Vectorizing happens while tracing, that is, inside of this context.
    registry: Any = pfor._pfor_converter_registry
    before = {name: registry[name] for name in _OPERATIONS}
    registry.update({n: _dropping(c) for n, c in before.items()})
    try:
        yield
    finally:
        registry.update(before)


def _dropping(converter: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def convert(given: Any) -> Any:
        given.stack_inputs([0, 1])
        ids, segments = given.stacked_input(1), given.unstacked_input(2)
        inside = ids < tf.cast(segments, ids.dtype)
        # Negative ids are dropped on every device.
        ids = tf.where(inside, ids, -tf.ones_like(ids))
        given._inputs[1] = pfor.wrap(ids, True)
        return converter(given)

    return convert
