"""What `fit` shows: loss and metrics of the real rows, never of padding.

These numbers are computed on private data and are NOT covered by ε: keep them
out of anything meant for release.
"""

from typing import Any

import keras
import tensorflow as tf

from tf_dpadaptive.batch import Batch
from tf_dpadaptive.clipping.engine import ClippedSum
from tf_dpadaptive.clipping.example import penalty


def show(model: Any, batch: Batch, clipped: ClippedSum) -> dict[str, Any]:
    """Updates the loss tracker and the metrics; returns their results.

    Args:
        model: The privatized model.
        batch: The batch.
        clipped: What the engine made of it.
    """
    real = batch.real()
    count = tf.reduce_sum(tf.cast(real, tf.float32))
    losses = tf.where(real, clipped.losses, tf.zeros_like(clipped.losses))
    mean = tf.reduce_sum(losses) / tf.maximum(count, 1.0)
    model._loss_tracker.update_state(mean + penalty(model), sample_weight=count)
    for variable, gained in zip(
        model.private.setup.example.counters, clipped.counters, strict=True
    ):
        variable.assign_add(tf.cast(gained, variable.dtype))
    outputs = _with_masks(clipped.outputs, clipped.masks)
    return update_metrics(model, batch, outputs)


def update_metrics(model: Any, batch: Batch, outputs: Any) -> dict[str, Any]:
    """Updates the compiled metrics with the real rows alone.

    Args:
        model: The model.
        batch: The batch.
        outputs: The model's outputs, with their Keras masks.
    """
    if batch.padding is None:
        return model.compute_metrics(
            batch.x, batch.y, outputs, sample_weight=batch.sample_weight
        )
    if model.jit_compile:
        return _update_weighted(model, batch, outputs)
    real = batch.real()
    rows = only_rows(batch, real)
    kept = _with_masks(
        tf.nest.map_structure(lambda t: tf.boolean_mask(t, real), outputs),
        {
            i: tf.boolean_mask(t._keras_mask, real)
            for i, t in enumerate(tf.nest.flatten(outputs))
            if getattr(t, "_keras_mask", None) is not None
        },
    )

    def update() -> tf.Tensor:
        model.compute_metrics(
            rows.x, rows.y, kept, sample_weight=rows.sample_weight
        )
        return tf.constant(True)

    tf.cond(tf.reduce_any(real), update, lambda: tf.constant(False))
    return model.get_metrics_result()


def only_rows(batch: Batch, real: tf.Tensor) -> Batch:
    """Returns the rows where `real` holds, without padding."""
    pick = lambda t: tf.boolean_mask(t, real)  # noqa: E731
    parts = [
        None if part is None else tf.nest.map_structure(pick, part)
        for part in batch[:3]
    ]
    return Batch(*parts)


def _with_masks(outputs: Any, masks: dict[int, tf.Tensor]) -> Any:
    """Attaches Keras masks to the outputs again."""
    flat = tf.nest.flatten(outputs)
    for place, mask in masks.items():
        flat[place] = tf.identity(flat[place])
        keras.src.backend.set_keras_mask(flat[place], mask)
    return tf.nest.pack_sequence_as(outputs, flat)


def _update_weighted(model: Any, batch: Batch, outputs: Any) -> dict[str, Any]:
    """XLA wants fixed shapes: padding gets weight 0 in every metric."""
    compiled = model._compile_metrics
    if compiled is None:
        return model.get_metrics_result()
    weight = tf.cast(batch.real(), tf.float32)
    y_true = compiled._flatten_y(batch.y)
    y_pred = compiled._flatten_y(outputs)
    weights = [None] * len(y_true)
    if batch.sample_weight is not None:
        weights = compiled._flatten_y(batch.sample_weight)
        weights = weights * (len(y_true) if len(weights) == 1 else 1)
    for metrics, weighted, true, pred, given in zip(
        compiled._flat_metrics,
        compiled._flat_weighted_metrics,
        y_true,
        y_pred,
        weights,
        strict=True,
    ):
        if metrics:
            metrics.update_state(true, pred, _spread(weight, pred, None))
        if weighted:
            weighted.update_state(true, pred, _spread(weight, pred, given))
    return model.get_metrics_result()


def _spread(weight: tf.Tensor, pred: tf.Tensor, given: Any) -> tf.Tensor:
    """Row weights times the output's Keras mask and the user's weights."""
    for factor in (getattr(pred, "_keras_mask", None), given):
        if factor is None:
            continue
        factor = tf.cast(factor, tf.float32)
        missing = factor.shape.rank - weight.shape.rank
        if missing > 0:
            weight = tf.reshape(weight, [*weight.shape, *[1] * missing])
        weight = weight * factor
    return weight
