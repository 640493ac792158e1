"""Metrics see raw rows, and may write to variables of their own alone.

They are traced once, on shapes, before the first step: what a metric would
write to a weight would be raw data that no noise covers.
"""

import re
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import auto_control_deps_utils

from tf_dpadaptive.batch import Batch
from tf_dpadaptive.clipping.example import ExampleLoss, forward
from tf_dpadaptive.clipping.graphs import VARIABLE_WRITES, keeps_elsewhere
from tf_dpadaptive.training.shown import update_metrics

#: Operations that run functions, which may write.
_CALLS = ("Case", "If", "PartitionedCall", "StatefulPartitionedCall", "While")


def metric_reasons(model: Any, batch: Batch, with_outputs: bool) -> list[str]:
    """Returns what the metrics would keep of a batch in the model.

    Args:
        model: A built, compiled model whose forward has passed the probe.
        batch: A batch (tensors or symbolic tensors) whose shapes are used.
        with_outputs: Whether the metrics are given the model's outputs.
    """
    specs = tf.nest.map_structure(
        lambda t: None if t is None else tf.TensorSpec(t.shape, t.dtype),
        batch._replace(padding=None),
    )
    # Outside of any trace: a metric may make its variables only now.
    with tf.init_scope():
        before = len(model.metrics_variables)
        graph, operations = _trace(model, specs, with_outputs)
        if len(model.metrics_variables) != before:
            # The first update may differ from all later ones.
            graph, operations = _trace(model, specs, with_outputs)
    reasons = [
        f"The metrics write to {name}, which is no variable of theirs: it "
        "would keep raw data that no noise covers. Let a metric write to what "
        "it made with `add_variable` alone."
        for name in _foreign(model, graph, operations)
    ]
    kept = keeps_elsewhere(graph)
    if kept:
        reasons.append(
            f"The metrics keep state elsewhere than in variables, or run "
            f"Python code in a step (operations {kept}): what that does with "
            "raw data is not known. Compute such a metric outside of `fit`."
        )
    return reasons


def _trace(
    model: Any, specs: Batch, with_outputs: bool
) -> tuple[Any, list[tf.Operation]]:
    """Update, result and reset of all metrics, as operations of a graph."""
    graph = tf.__internal__.FuncGraph("metrics")
    with graph.as_default():
        batch = tf.nest.map_structure(
            lambda s: (
                None
                if s is None
                else tf.compat.v1.placeholder(s.dtype, s.shape)
            ),
            specs,
        )
        outputs: Any = ()
        if with_outputs:
            example = ExampleLoss(model)
            seeds = [(s, tf.zeros([2], s.dtype)) for s in example.seed_states]
            _, outputs, _ = forward(model, example.values(), batch, seeds)
        earlier = {op.name for op in graph.get_operations()}
        update_metrics(model, batch, outputs)
        if model.jit_compile:
            # Under XLA padded batches take another way (see `shown`).
            padding = tf.zeros([batch.size], tf.bool)
            update_metrics(model, batch._replace(padding=padding), outputs)
        model.reset_metrics()
    return graph, [o for o in graph.get_operations() if o.name not in earlier]


def _foreign(
    model: Any, graph: Any, operations: list[tf.Operation]
) -> list[str]:
    """Names of the variables written to that are none of the metrics'."""
    weights = [*model.variables, *model.optimizer.variables]
    # A metric that is given a weight as an attribute tracks it as its own.
    known: dict[int, Any] = {id(v.value.handle): v for v in weights}
    own = {id(v.value.handle) for v in model.metrics_variables} - set(known)
    outer = {id(inner): outside for outside, inner in graph.captures}
    found: dict[str, None] = {}
    for operation in operations:
        writes = operation.type.startswith(VARIABLE_WRITES)
        if not writes and operation.type not in _CALLS:
            continue
        _, written = auto_control_deps_utils.get_read_write_resource_inputs(
            operation
        )
        for handle in written:
            outside = outer.get(id(handle))
            key = id(outside)
            if key in own:
                continue
            if key in known:
                found[f"variable {known[key].path!r}"] = None
            elif writes:
                found[f"tf.Variable {_handle_name(outside)!r}"] = None
    return list(found)


def _handle_name(handle: Any) -> str:
    """A handle shows the name of its variable, and has no other way to it."""
    shown = re.search(r'name="([^"]*?)(/\d+)?"', str(handle))
    return shown.group(1) if shown else str(handle)
