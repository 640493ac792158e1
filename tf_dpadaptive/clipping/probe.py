"""Looks at the training forward before anything runs, on shapes alone.

The forward and the loss of one example are traced into a scratch graph. From
it we learn which variables the loss depends on, which state the forward changes
and whether that change depends on data, and which operations an engine would
meet. Nothing here reads an example.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_dpadaptive.batch import Batch
from tf_dpadaptive.clipping.example import (
    ExampleLoss,
    current,
    dense,
    forward,
)
from tf_dpadaptive.clipping.graphs import keeps_state, operations


@dataclasses.dataclass(frozen=True)
class Probe:
    """What the trace of one example showed.

    Attributes:
        connected: Positions of trainable variables that the loss depends on.
        refusals: Reasons why the model can't be trained privately.
        counters: Additive metric variables that the loss updates.
        weight_state: Variables that the forward changes as a function of
            weights alone (power iterations, and the kernel they normalise).
        operations: Names of all operations of forward and backward.
    """

    connected: frozenset[int]
    refusals: tuple[str, ...]
    counters: tuple[keras.Variable, ...]
    weight_state: tuple[keras.Variable, ...]
    operations: frozenset[str]


def row_specs(batch: Batch) -> Batch:
    """Returns the shapes and dtypes of one row of a batch."""
    return tf.nest.map_structure(
        lambda t: tf.TensorSpec(t.shape[1:], t.dtype), batch.without_none()
    )


def probe(model: keras.Model, batch: Batch) -> Probe:
    """Traces one example of a built, compiled model.

    Args:
        model: The model.
        batch: A batch (tensors or symbolic tensors) whose shapes are used.
    """
    example = ExampleLoss(model)
    counters = _additive_metric_variables(model)
    seen: dict[str, Any] = {"model": model}

    def one(row: Batch) -> list[tf.Tensor]:
        values = [tf.identity(v) for v in example.values()]
        seeds = [(s, tf.zeros([2], s.dtype)) for s in example.seed_states]
        given = dict(
            zip(map(id, model.trainable_variables), values, strict=True)
        )
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(values)
            loss, outputs, scope = forward(
                model, values, row.as_batch_of_one(), seeds
            )
            seen["outputs"] = [t.shape for t in tf.nest.flatten(outputs)]
            read = current(model, scope)
        seen["loss_shape"] = loss.shape
        gradients = tape.gradient(loss, read)
        seen["connected"] = frozenset(
            i for i, g in enumerate(gradients) if g is not None
        )
        now = [
            (v, scope.get_current_value(v))
            for v in [*model.variables, *model.metrics_variables]
        ]
        seed_ids = {id(v) for v, _ in seeds}
        seen["changed"] = {
            id(v): (v, value)
            for v, value in now
            if value is not None
            and id(v) not in seed_ids
            and value is not given.get(id(v))
        }
        seen["added"] = _owners(model, scope.losses)
        changed = [value for _, value in seen["changed"].values()]
        return [tf.identity(t) for t in [*changed, *scope.losses, loss]] + [
            dense(g) for g in gradients if g is not None
        ]

    traced = tf.function(one, autograph=False).get_concrete_function(
        row_specs(batch)
    )
    graph = traced.graph
    inputs = {
        id(t.op)
        for t in graph.inputs
        if t.op.type == "Placeholder" and t.dtype != tf.resource
    } - {id(t.op) for _, t in graph.captures}
    outputs = list(graph.outputs)
    changed = list(seen["changed"].values())
    from_data = [_depends(t, inputs) for t in outputs[: len(changed)]]
    counter_ids = {id(v) for v in counters}
    refusals = _refusals(seen, changed, from_data, counter_ids, graph)
    zeroed = {id(v) for v, _ in changed if id(v) in counter_ids}
    refusals += _metric_reads(model, graph, zeroed)
    return Probe(
        connected=seen["connected"],
        refusals=tuple(refusals),
        counters=tuple(v for v, _ in changed if id(v) in counter_ids),
        weight_state=tuple(
            v
            for (v, _), data in zip(changed, from_data, strict=True)
            if not data and id(v) not in counter_ids
        ),
        operations=operations(graph),
    )


def _metric_reads(
    model: keras.Model, graph: Any, zeroed: set[int]
) -> list[str]:
    """Metrics whose raw state the loss reads: it holds earlier batches."""
    captured = {id(outer) for outer, _ in graph.captures}
    return [
        f"The loss reads metric variable {variable.path!r}, which holds raw "
        "values of earlier batches: one example would move later updates too. "
        "Let the loss depend on its own example and the weights alone."
        for variable in model.metrics_variables
        if id(variable) not in zeroed and id(variable.value.handle) in captured
    ]


def _refusals(
    seen: dict[str, Any],
    changed: Sequence[tuple[keras.Variable, Any]],
    from_data: Sequence[bool],
    counter_ids: set[int],
    graph: Any,
) -> list[str]:
    reasons = []
    if seen["loss_shape"].rank != 0:
        reasons.append(
            "The loss of one example is not a scalar (shape "
            f"{seen['loss_shape']}): use a loss with a reduction other than "
            '"none".'
        )
    elif not seen["connected"]:
        reasons.append(
            "The loss depends on no trainable variable: there is nothing to "
            "train. Check `trainable` and the model's outputs."
        )
    for shape in seen["outputs"]:
        if shape.rank == 0 or shape[0] not in (1, None):
            reasons.append(
                "Every output of the model must have one row an example, but "
                f"for one example there is one of shape {shape}."
            )
    for (variable, _), data in zip(changed, from_data, strict=True):
        if data and id(variable) not in counter_ids:
            reasons.append(
                f"Variable {variable.path!r} is changed by the training "
                "forward as a function of the data: it would keep raw data "
                "that no noise covers. Freeze the layer that owns it "
                "(`trainable = False`) or replace it."
            )
    for name in seen["added"]:
        reasons.append(
            f"Layer {name!r} calls `add_loss` or has an activity regularizer: "
            "such a loss mixes the batch. Put it into the compiled loss, or "
            "use a weight regularizer."
        )
    kept = keeps_state(graph)
    if kept:
        owners = _writers(seen["model"], graph)
        reasons.append(
            f"The training forward ({', '.join(owners) or 'some layer'}) "
            f"writes to a raw tf.Variable, a table or a queue, or runs Python "
            f"code in a step ({kept}): it could keep raw data. Remove it."
        )
    return reasons


def _owners(model: keras.Model, losses: Sequence[Any]) -> list[str]:
    """Names of the layers that added these losses."""
    added = {id(loss) for loss in losses}
    return [
        layer.name
        for layer in model._flatten_layers(include_self=True, recursive=True)
        if added & getattr(layer, "_loss_ids", set())
    ]


def _writers(model: keras.Model, graph: Any) -> list[str]:
    """Names of layers whose raw `tf.Variable`s the graph reads or writes."""
    captured = {id(outer) for outer, _ in graph.captures}
    return [
        layer.name
        for layer in model._flatten_layers(include_self=True, recursive=True)
        for value in vars(layer).values()
        if isinstance(value, tf.Variable) and id(value.handle) in captured
    ]


def _additive_metric_variables(model: keras.Model) -> list[keras.Variable]:
    """Totals and counts of means and sums that a loss may update."""
    additive = (keras.metrics.Mean, keras.metrics.Sum)
    return [
        variable
        for metric in model.metrics
        if isinstance(metric, additive)
        for variable in metric.variables
    ]


def _depends(tensor: Any, inputs: set[int]) -> bool:
    """Whether a graph tensor has one of the input operations upstream."""
    stack, done = [tensor.op], set()
    while stack:
        op = stack.pop()
        if id(op) in inputs:
            return True
        if id(op) in done:
            continue
        done.add(id(op))
        stack.extend(t.op for t in op.inputs)
        stack.extend(op.control_inputs)
    return False
