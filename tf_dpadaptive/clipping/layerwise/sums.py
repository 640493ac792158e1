"""The weighted pass: Σ_i f_i g_i of one variable, from what g_i is made of."""

import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_dpadaptive.clipping.layerwise import chunks
from tf_dpadaptive.clipping.layerwise.forms import (
    Deferred,
    Form,
    Formed,
    Gather,
    Outer,
    VariableGradient,
)


def select(
    gradients: Sequence[VariableGradient], finite: tf.Tensor
) -> list[VariableGradient]:
    """Sets the rows of non-finite gradients to zero, before any product.

    A row whose norm is finite is made of finite numbers, so that a factor of
    0 is enough for it; 0 · NaN is not. Usually all rows are finite.

    Args:
        gradients: Per-example gradients of all variables.
        finite: bool (n,), whether the norm of all of them is finite.
    """
    parts = [gradient.tensors() for gradient in gradients]
    cleaned = tf.cond(
        tf.reduce_all(finite),
        lambda: parts,
        lambda: tf.nest.map_structure(lambda t: rows_of(finite, t), parts),
    )
    return [
        gradient.with_tensors(tensors)
        for gradient, tensors in zip(gradients, cleaned, strict=True)
    ]


def rows_of(keep: tf.Tensor, tensor: tf.Tensor) -> tf.Tensor:
    """Returns `tensor` with rows of zeros where `keep` (n,) is False."""
    shape = [-1] + [1] * (tensor.shape.rank - 1)
    return tf.where(tf.reshape(keep, shape), tensor, tf.zeros_like(tensor))


def weighted_sum(gradient: VariableGradient, factors: tf.Tensor) -> tf.Tensor:
    """Returns the float32 Σ_i factors_i g_i, of the variable's shape.

    Args:
        gradient: Per-example gradients, free of non-finite rows.
        factors: float32 (n,).
    """
    return tf.add_n(
        [_weighted(f, factors, gradient.shape) for f in gradient.forms]
    )


def _weighted(
    form: Form, factors: tf.Tensor, shape: tuple[int, ...]
) -> tf.Tensor:
    if isinstance(form, Outer):
        return form.view.to_variable(_outer(form, factors))
    if isinstance(form, Gather):
        rows = form.rows * factors[:, None, None]
        columns = form.rows.shape[-1]
        table = tf.math.unsorted_segment_sum(
            tf.reshape(rows, [-1, columns]),
            tf.reshape(form.ids, [-1]),
            shape[0],
        )
        return tf.reshape(table, shape)
    if isinstance(form, Formed):
        if form.view is None:
            return _contract(factors, form.value, shape)
        summed = _contract(factors, form.value, form.view.matrix)
        return form.view.to_variable(summed)

    def function(tensors: Any) -> tf.Tensor:
        weights, parts = tensors
        gradients = Deferred(parts, form.function).formed(shape)
        # Rows of zeros need not have a finite gradient.
        return _contract(weights, rows_of(weights > 0, gradients), shape)

    return chunks.sum_over_examples(
        function, (factors, form.tensors), 4 * math.prod(shape), shape
    )


def _outer(form: Outer, factors: tf.Tensor) -> tf.Tensor:
    """One product of all examples and steps: (groups, rows, columns)."""
    groups, rows, columns = form.view.matrix
    left, right = form.left, form.right
    weights = factors[:, None, None, None]
    if rows < columns:
        left = left * weights
    else:
        right = right * weights
    if groups == 1:
        left = tf.reshape(left, [-1, rows])
        right = tf.reshape(right, [-1, columns])
        return tf.matmul(left, right, transpose_a=True)[None]
    left, right = (
        tf.reshape(tf.transpose(t, [1, 0, 2, 3]), [groups, -1, t.shape[3]])
        for t in (left, right)
    )
    return tf.matmul(left, right, transpose_a=True)


def _contract(
    factors: tf.Tensor, gradients: tf.Tensor, shape: tuple[int, ...]
) -> tf.Tensor:
    flat = tf.reshape(gradients, [tf.shape(factors)[0], -1])
    return tf.reshape(tf.matmul(factors[None], flat), shape)
