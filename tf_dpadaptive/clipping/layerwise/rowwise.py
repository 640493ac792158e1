"""Running a function of one example over many: vectorized where possible."""

import os
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_dpadaptive.clipping.rows_at_once import rows_at_once


def over_rows(
    function: Callable[[Any], Any], rows: Any, *, looped: bool
) -> Any:
    """Returns the stacked results of `function` for every row.

    Args:
        function: From one row of `rows` to a structure of tensors.
        rows: A structure of tensors with one row an example.
        looped: One row after the other, instead of all at once.
    """
    if not looped:
        return rows_at_once(function, rows)
    spec = traced(function, rows).structured_outputs
    return tf.map_fn(
        function,
        rows,
        fn_output_signature=tf.nest.map_structure(
            lambda s: tf.TensorSpec(s.shape, s.dtype), spec
        ),
        parallel_iterations=1,
    )


def must_loop(function: Callable[[Any], Any], rows: Any) -> bool:
    """Whether `function` can't be vectorized, found by tracing alone.

    An Einsum under `vectorized_map` crashes the process with oneDNN on, which
    can't be caught: such a function is always looped.

    Args:
        function: From one row of `rows` to a structure of tensors.
        rows: A structure of tensors with one row an example.
    """
    operations = _operations(traced(function, rows).graph)
    if "Einsum" in operations and _onednn():
        return True
    specs = tf.nest.map_structure(
        lambda t: tf.TensorSpec([2, *t.shape[1:]], t.dtype), rows
    )
    try:
        tf.function(
            lambda rows: over_rows(function, rows, looped=False),
            autograph=False,
        ).get_concrete_function(specs)
    except (ValueError, TypeError, NotImplementedError):
        return True
    return False


def traced(function: Callable[[Any], Any], rows: Any) -> Any:
    """Returns the concrete function of one row, without running it.

    Args:
        function: From one row of `rows` to a structure of tensors.
        rows: A structure of tensors with one row an example.
    """
    specs = tf.nest.map_structure(
        lambda t: tf.TensorSpec(t.shape[1:], t.dtype), rows
    )
    concrete = tf.function(lambda row: function(row), autograph=False)
    return concrete.get_concrete_function(specs)


def _operations(graph: Any) -> set[str]:
    definition = graph.as_graph_def()
    names = {node.op for node in definition.node}
    for called in definition.library.function:
        names |= {node.op for node in called.node_def}
    return names


def _onednn() -> bool:
    """Whether oneDNN operations are on (the default on x86-64)."""
    return os.environ.get("TF_ENABLE_ONEDNN_OPTS", "1") != "0"
