"""Arrays in memory, as batches of fixed shape whose padding is known.

Rows are gathered inside tf.data, in C++ and without the Python of a generator,
so that a batch of images costs about a millisecond.
"""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_dpadaptive.batch import Batch
from tf_dpadaptive.clipping.graphs import keeps_state, nodes


def as_examples(x: Any, y: Any, sample_weight: Any, examples: int) -> Batch:
    """Returns the arrays as CPU tensors of `examples` rows, padding None.

    Args:
        x: Array or structure (dict, tuple, list) of arrays or tensors.
        y: The same, or None.
        sample_weight: The same, or None.
        examples: The number of rows that each must have.

    Floats become `keras.config.floatx()`, as in Keras; lists become tuples.

    Raises:
        ValueError: if there is no x, or a leading size is not `examples`.
        TypeError: for ragged or sparse tensors, and what is no array.
    """
    if x is None:
        raise ValueError("`x` must be an array. Received: x=None.")
    parts = [
        None if part is None else _tensors(name, part)
        for name, part in (("x", x), ("y", y), ("sample_weight", sample_weight))
    ]
    for name, part in zip(("x", "y", "sample_weight"), parts, strict=True):
        for leaf in tf.nest.flatten(part):
            if leaf is None:
                continue
            if leaf.shape.rank == 0 or leaf.shape[0] != examples:
                raise ValueError(
                    f"`{name}` must have the plan's num_examples={examples} "
                    f"rows. Received: {name} of shape {tuple(leaf.shape)}."
                )
    return Batch(*parts)


def _tensors(name: str, part: Any) -> Any:
    if isinstance(part, dict):
        return {key: _tensors(f"{name}[{key!r}]", part[key]) for key in part}
    if isinstance(part, (list, tuple)):
        # tf.data would stack a list.
        return tuple(
            _tensors(f"{name}[{place}]", leaf)
            for place, leaf in enumerate(part)
        )
    return _tensor(name, part)


def _tensor(name: str, leaf: Any) -> tf.Tensor:
    if isinstance(leaf, (tf.RaggedTensor, tf.SparseTensor)) or not hasattr(
        leaf, "shape"
    ):
        raise TypeError(
            f"`{name}` must be an array or a dense tensor, one row an example "
            "(rows are drawn by number, so a dataset or a generator must be "
            "read into arrays first). Received: "
            f"{name}={type(leaf).__name__}."
        )
    with tf.device("CPU:0"):
        if not tf.is_tensor(leaf):
            leaf = np.asarray(leaf)
        tensor = tf.convert_to_tensor(leaf)
        if tensor.dtype.is_floating:
            tensor = tf.cast(tensor, keras.config.floatx())
        return tf.identity(tensor)


def gather(examples: Batch, rows: tf.Tensor, count: tf.Tensor) -> Batch:
    """Returns rows as a batch: the first `count` are examples, then padding.

    Args:
        examples: What `as_examples` returned.
        rows: int64 (max_batch_size,), examples first.
        count: int32 scalar, how many of them are examples.
    """
    padding = tf.range(tf.size(rows)) >= count
    padding = tf.ensure_shape(padding, rows.shape)

    def take(tensor: tf.Tensor | None) -> tf.Tensor | None:
        if tensor is None:
            return None
        taken = tf.gather(tensor, rows)
        shape = [-1] + [1] * (len(taken.shape) - 1)
        return tf.where(tf.reshape(padding, shape), tf.zeros_like(taken), taken)

    batch = tf.nest.map_structure(take, examples)
    return batch._replace(padding=padding)


def map_examples(
    dataset: tf.data.Dataset,
    map_fn: Callable[..., Any],
    rows: int,
    examples: int,
) -> tf.data.Dataset:
    """Applies `map_fn` to each example by itself; padding stays padding.

    Args:
        dataset: Of `Batch`es of `rows` rows.
        map_fn: Takes one example as (x), (x, y) or (x, y, sample_weight), as
            many as there are, and returns as many, of fixed shapes.
        rows: Rows of a batch.
        examples: The plan's num_examples: constants of so many rows are taken
            for the examples themselves.

    Raises:
        ValueError: if `map_fn` returns another number of values, or values
            without a fixed shape; if it could keep a row, or holds data.
    """
    example = tuple(_one(part) for part in dataset.element_spec[:3])
    while example[-1] is None:
        example = example[:-1]

    # Its own function: Python's `if` and `for` work in it, as in tf.data.
    written = tf.function(map_fn)

    def mapped(*values: Any) -> tuple[Any, ...]:
        result = written(*values)
        result = result if len(example) > 1 else (result,)
        if not isinstance(result, tuple) or len(result) != len(example):
            raise ValueError(
                f"`map_fn` takes {len(example)} values and must return a tuple "
                f"of as many. Received: {result!r}."
            )
        return result

    traced = tf.function(mapped, autograph=False).get_concrete_function(
        *example
    )
    _refuse_state(traced.graph)
    _refuse_data(traced.graph, examples)
    structure = traced.structured_outputs
    specs = _present(structure)
    for spec in specs:
        if not spec.shape.is_fully_defined():
            raise ValueError(
                "`map_fn` must return values of fixed shape, so that they "
                f"make a batch. Received: shape={spec.shape}."
            )

    def one(leaves: list[tf.Tensor]) -> list[tf.Tensor]:
        # What was looked at is what runs.
        return _present(traced(*_refill(example, leaves)))

    @tf.autograph.experimental.do_not_convert
    def each(batch: Batch) -> Batch:
        # Padding is not decoded, divided by or looked up.
        count = tf.reduce_sum(tf.cast(batch.real(), tf.int32))
        leaves = [leaf[:count] for leaf in _present(batch[: len(example)])]
        flat = tf.map_fn(
            one,
            leaves,
            fn_output_signature=[
                tf.TensorSpec(spec.shape, spec.dtype) for spec in specs
            ],
            parallel_iterations=16,
        )
        parts = _refill(structure, [_padded(leaf, rows) for leaf in flat])
        x, y, weight = (*parts, None, None)[:3]
        return Batch(x, y, weight, batch.padding)

    return dataset.map(each)


def _refuse_state(graph: Any) -> None:
    """An augmentation that keeps state could carry one example to another."""
    kept = keeps_state(graph)
    if kept:
        raise ValueError(
            "`map_fn` must not keep state or run Python code in a step (no "
            "`tf.py_function`): what it remembers of one example would reach "
            f"another. Received: a function with the operations {kept}."
        )


def _refuse_data(graph: Any, examples: int) -> None:
    """Mixup and its like: one example would be in the rows of others."""
    shapes = [
        [d.size for d in node.attr["value"].tensor.tensor_shape.dim]
        for node in nodes(graph)
        if node.op == "Const"
    ]
    for outer, _ in graph.captures:
        if outer.dtype == tf.variant:
            raise ValueError(
                "`map_fn` must not read a dataset or a list of tensors: one "
                "example would enter the rows of others. Received: a function "
                f"that captures {outer!r}."
            )
        # A variable's handle knows the shape of its value; a table's none.
        handle = getattr(outer, "_handle_data", None)
        if outer.dtype != tf.resource:
            shapes.append(outer.shape.as_list())
        elif handle is not None and handle.is_set:
            dims = handle.shape_and_type[0].shape.dim
            shapes.append([d.size for d in dims])
    for shape in shapes:
        if any(side >= examples for side in shape):
            raise ValueError(
                "`map_fn` must not hold a tensor with a side as long as there "
                f"are examples (num_examples={examples}): if those are the "
                "examples, one example would enter the rows of others, as in "
                "mixup, and ε would not cover it. Received: a function with a "
                f"tensor of shape {tuple(shape)}. Mix only what is part of the "
                "example itself."
            )


def _padded(leaf: tf.Tensor, rows: int) -> tf.Tensor:
    """Appends zero rows, or empty strings, up to `rows`."""
    shape = leaf.shape[1:]
    missing = tf.zeros([rows - tf.shape(leaf)[0], *shape], leaf.dtype)
    return tf.ensure_shape(tf.concat([leaf, missing], 0), [rows, *shape])


def _refill(structure: Any, leaves: list[Any]) -> Any:
    """Puts leaves in the places of a structure that are not None."""
    remaining = iter(leaves)
    return tf.nest.pack_sequence_as(
        structure,
        [
            None if place is None else next(remaining)
            for place in tf.nest.flatten(structure)
        ],
    )


def _present(structure: Any) -> list[Any]:
    return [leaf for leaf in tf.nest.flatten(structure) if leaf is not None]


def _one(part: Any) -> Any:
    """The spec of one row of a batch's part; None where there is no part."""
    if not _present(part) or not isinstance(
        tf.nest.flatten(part)[0], tf.TensorSpec
    ):
        return None
    return tf.nest.map_structure(
        lambda spec: tf.TensorSpec(spec.shape[1:], spec.dtype), part
    )
