"""The one clip: per-example norms to factors, and the clipped sum.

A contribution is exactly zero when the row is padding or when its transformed
gradient or norm is not finite in float32 (a norm above 1.8e19 counts as such:
its square overflows). Zeroing is done by selection, before any product, so that
0 · NaN can't poison a sum.
"""

from collections.abc import Mapping

import tensorflow as tf

from tf_dpadaptive.clipping.geometry import Geometry


def contributes(norms: tf.Tensor, real: tf.Tensor) -> tf.Tensor:
    """Returns bool (n,): whether a row may contribute at all.

    Args:
        norms: float32 (n,) norms of the transformed gradients.
        real: bool (n,), False for padding.
    """
    return tf.logical_and(real, tf.math.is_finite(norms))


def clip_factors(
    norms: tf.Tensor, real: tf.Tensor, clip_norm: tf.Tensor | float
) -> tf.Tensor:
    """Returns float32 (n,) factors min(1, ζ/norm), 0 where nothing counts.

    Args:
        norms: float32 (n,) norms of the transformed gradients.
        real: bool (n,), False for padding.
        clip_norm: ζ > 0.
    """
    clip_norm = tf.cast(clip_norm, tf.float32)
    keep = contributes(norms, real)
    factors = tf.minimum(1.0, clip_norm / tf.maximum(norms, 1e-30))
    return tf.where(keep, factors, 0.0)


def squared_norms(gradients: Mapping[int, tf.Tensor]) -> tf.Tensor:
    """Returns float32 (n,): squared norm over all variables together.

    Args:
        gradients: Per-example gradients of shape (n, ...).
    """
    parts = []
    for gradient in gradients.values():
        square = tf.square(tf.cast(gradient, tf.float32))
        parts.append(tf.reduce_sum(square, axis=list(range(1, square.ndim))))
    return tf.add_n(parts)


def clip_and_sum(
    gradients: Mapping[int, tf.Tensor],
    real: tf.Tensor,
    clip_norm: tf.Tensor | float,
    geometry: Geometry,
) -> tuple[dict[int, tf.Tensor], tf.Tensor]:
    """Returns the sum of the clipped, transformed gradients, and the norms.

    Args:
        gradients: Per-example gradients of shape (n, *variable.shape),
            keyed by position of the variable.
        real: bool (n,), False for padding.
        clip_norm: ζ, the bound on each contribution's norm.
        geometry: Coordinates in which the clip happens.

    Returns:
        Float32 sums of the variables' shapes, and the float32 (n,) norms
        before clipping.

    Privacy: one example moves the sum by at most ζ when it becomes padding.
        The norms are raw: they must not outlive the step.
    """
    moved = {i: geometry.forward(i, g) for i, g in gradients.items()}
    norms = tf.sqrt(squared_norms(moved))
    keep = contributes(norms, real)
    factors = clip_factors(norms, real, clip_norm)
    sums = {}
    for i, w in moved.items():
        rows = tf.reshape(keep, [-1] + [1] * (w.shape.rank - 1))
        # A product and a sum, no matrix product: on a GPU that may round its
        # factors to TF32, and a contribution could pass the clip by 0.05 %.
        weights = tf.reshape(factors, tf.shape(rows))
        sums[i] = tf.reduce_sum(weights * tf.where(rows, w, 0.0), 0)
    return sums, norms
