"""Do the rows of a batch stay apart in the graph of a forward pass?

Outputs on made-up or first batches can't show a layer that mixes rows only
where the data call for it (divided by the largest entry of a batch, turned
round if any entry is large). The graph does: traced with a number of rows that
divides no other dimension, whatever depends on the inputs must keep a
dimension of rows, and just one.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tf_dpadaptive.clipping.layerwise.plan import NotLayerwise

PROBED_ROWS = 1009
"""Examples while planning: a prime that is likely to divide no dimension."""

#: Operations whose results depend on shapes alone.
_OF_SHAPES = ("OnesLike", "Rank", "Shape", "ShapeN", "Size", "ZerosLike")
#: Operations whose number of results depends on the values, or that put rows
#: in another order.
_UNEVEN = (
    "DynamicPartition",
    "NonMaxSuppression",
    "RaggedTensorToTensor",
    "RandomShuffle",
    "Unique",
    "Where",
)
#: Operations along an axis, given by an input: refused along the rows.
_ALONG = {"Cumprod": 1, "Cumsum": 1, "GatherV2": 2, "ReverseV2": 1, "Roll": 2}


def refuse_meeting_rows(
    inputs: Iterable[Any], outputs: Iterable[Any], rows: int
) -> None:
    """Raises where rows may meet on the way from inputs to outputs.

    Args:
        inputs: Tensors that have one row an example.
        outputs: Tensors of the same graph.
        rows: Their number of rows. Any other than `PROBED_ROWS` (of models of
            a fixed batch size) may divide other dimensions, and shows less.

    Raises:
        NotLayerwise: names the operation.
    """
    started = {id(t) for t in inputs if _symbolic(t)}
    _walk([t for t in outputs if _symbolic(t)], started, rows)


def _symbolic(tensor: Any) -> bool:
    return tf.is_tensor(tensor) and hasattr(tensor, "op")


def _walk(
    outputs: Sequence[tf.Tensor], started: set[int], rows: int
) -> list[bool]:
    """Checks what the outputs are made of; returns which depend on inputs."""
    depends: dict[int, bool] = {}
    called: dict[int, list[bool]] = {}
    for tensor in _in_order(outputs, started):
        if id(tensor) in started:
            depends[id(tensor)] = True
            continue
        operation = tensor.op
        taken = [depends[id(t)] for t in operation.inputs]
        mine = any(taken) and operation.type not in _OF_SHAPES
        if mine:
            inner = list(_functions(operation))
            if inner:
                # One operation has many results: its functions are seen once.
                if id(operation) not in called:
                    called[id(operation)] = _through(
                        operation, inner, taken, rows
                    )
                mine = called[id(operation)][tensor.value_index]
        if mine and _met(tensor, rows, taken):
            raise NotLayerwise(
                f"The rows of a batch meet in the operation "
                f"{operation.name!r} ({operation.type}): it depends on more "
                "than one example."
            )
        depends[id(tensor)] = mine
    return [depends[id(t)] for t in outputs]


def _in_order(
    outputs: Sequence[tf.Tensor], started: set[int]
) -> Iterator[tf.Tensor]:
    """All that outputs are computed from, inputs of an operation first."""
    seen: set[int] = set()
    stack = [(t, False) for t in outputs]
    while stack:
        tensor, ready = stack.pop()
        if ready:
            yield tensor
        elif id(tensor) not in seen:
            seen.add(id(tensor))
            stack.append((tensor, True))
            if id(tensor) not in started:
                stack += [(t, False) for t in tensor.op.inputs]


def _met(tensor: tf.Tensor, rows: int, taken: Sequence[bool]) -> bool:
    """Whether a tensor that depends on the inputs has lost its rows."""
    operation = tensor.op
    if tensor.dtype in (tf.variant, tf.resource):
        return False
    if operation.type.startswith(_UNEVEN):
        return True
    sides = tensor.shape if tensor.shape.is_fully_defined() else None
    if rows != PROBED_ROWS:
        return sides is not None and not any(_of_rows(s, rows) for s in sides)
    if operation.type == "TopKV2":
        return _of_rows(operation.inputs[0].shape[-1], rows)
    if operation.type in _ALONG and taken[0]:
        axes = tf.get_static_value(operation.inputs[_ALONG[operation.type]])
        shape = operation.inputs[0].shape
        if axes is not None and shape.rank is not None:
            along = [axes] if axes.ndim == 0 else list(axes)
            if any(_of_rows(shape[int(axis)], rows) for axis in along):
                return True
    if operation.type == "StridedSlice" and taken[0]:
        steps = tf.get_static_value(operation.inputs[3])
        first = operation.inputs[0].shape[:1]
        if steps is not None and _of_rows(first[0], rows) and steps[0] < 0:
            return True
    return sides is not None and sum(_of_rows(s, rows) for s in sides) != 1


def _of_rows(side: int | None, rows: int) -> bool:
    return bool(side) and side % rows == 0


def _functions(operation: tf.Operation) -> Iterator[Any]:
    """The graphs of the functions that an operation calls."""
    for attribute in operation.node_def.attr.values():
        name = attribute.func.name
        if name:
            yield operation.graph._get_function(name).graph


def _through(
    operation: tf.Operation,
    graphs: Sequence[Any],
    taken: Sequence[bool],
    rows: int,
) -> list[bool]:
    """Which results of a call depend on inputs; checks the functions."""
    looped = operation.type in ("StatelessWhile", "While")
    passed = list(taken)
    if operation.type in ("Case", "If", "StatelessCase", "StatelessIf"):
        passed = passed[1:]
    found = [False] * len(operation.outputs)
    while True:
        for graph in graphs:
            started = {
                id(t)
                for t, given in zip(graph.inputs, passed, strict=False)
                if given
            }
            inner = _walk(graph.outputs, started, rows)
            if len(inner) == len(found):
                pairs = zip(found, inner, strict=True)
                found = [a or b for a, b in pairs]
        if not looped:
            break
        more = [a or b for a, b in zip(passed, found, strict=True)]
        if more == passed:
            break
        passed = more
    return found
