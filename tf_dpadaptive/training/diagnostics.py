"""Diagnostics of the clip: off by default, raw, and gone after the step.

They are computed from private data and NOT covered by ε, and their names begin
with `nonprivate/`. A step hands them to the logs of `fit`, and to no variable.
"""

from typing import Any

import tensorflow as tf

from tf_dpadaptive.batch import Batch
from tf_dpadaptive.clipping.engine import ClippedSum

PREFIX = "nonprivate/"


def switch(model: Any, on: bool) -> None:
    """Makes the train function anew if diagnostics are turned on or off.

    Args:
        model: A privatized, compiled model.
        on: Whether steps show them from now on.
    """
    if model.private.diagnostics == on:
        return
    model.private.diagnostics = on
    model.train_function = None
    if on:
        # `fit` has looked for it already when its callbacks begin.
        model.make_train_function()


def of_step(
    batch: Batch, clipped: ClippedSum, clip_norm: tf.Tensor
) -> dict[str, tf.Tensor]:
    """Returns the diagnostics of one step, float32 scalars by name.

    Args:
        batch: The batch.
        clipped: What the engine made of it.
        clip_norm: The bound that it clipped at.

    Norms are those that were clipped: of a method that scales gradients first,
    the scaled ones. Examples whose norm is not finite count as clipped, and are
    left out of the mean.
    """
    real = batch.real()
    finite = tf.logical_and(real, tf.math.is_finite(clipped.norms))
    within = tf.logical_and(finite, clipped.norms <= clip_norm)
    outside = tf.logical_and(real, tf.logical_not(within))
    norms = tf.where(finite, clipped.norms, 0.0)
    return {
        PREFIX + "clip_fraction": _count(outside) / _at_least_one(real),
        PREFIX + "mean_norm": tf.reduce_sum(norms) / _at_least_one(finite),
    }


def _count(rows: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(tf.cast(rows, tf.float32))


def _at_least_one(rows: tf.Tensor) -> tf.Tensor:
    return tf.maximum(_count(rows), 1.0)
