"""Squared norms of s ⊙ (g_i - m) for one variable, without storing every g_i.

By the form of the gradients:

* outer products: see `products`;
* look-ups: equal ids within an example are summed first; the cross term joins
  them with the other uses of a tied table;
* anything else, and sums of several forms: formed for some examples at a time,
  and dropped.
"""

from typing import Any

import tensorflow as tf

from tf_dpadaptive.clipping.layerwise import chunks
from tf_dpadaptive.clipping.layerwise.forms import (
    Formed,
    Gather,
    Outer,
    VariableGradient,
)
from tf_dpadaptive.clipping.layerwise.products import (
    MARGIN_32,
    MARGIN_64,
    Local,
    forming_pays,
    norms_of_products,
    sum_of_squares,
    with_margin,
)


def settle(gradient: VariableGradient, local: Local) -> VariableGradient:
    """Forms the gradients of all examples at once, where that is cheapest.

    Args:
        gradient: Per-example gradients of a variable.
        local: Geometry of the variable.

    Returns:
        The same gradients, as one `Formed` if they are few numbers.
    """
    kinds = [type(form) for form in gradient.forms]
    if kinds == [Formed]:
        return gradient
    rows = chunks.static_rows(gradient.tensors())
    small = rows is not None and rows * gradient.size <= chunks.KEPT_FLOATS
    if kinds == [Outer]:
        outer: Any = gradient.forms[0]
        if outer.steps == 1 or not forming_pays(outer, local, small):
            return gradient
        wide = outer.wide()
        return gradient._replace(forms=(Formed(wide.matrices(), wide.view),))
    if set(kinds) <= {Outer, Gather} or not small:
        return gradient
    return gradient._replace(forms=(Formed(gradient.formed()),))


def squared_norms(gradient: VariableGradient, local: Local) -> tf.Tensor:
    """Returns float32 (n,): ‖s ⊙ (g_i - m)‖² of every example.

    Args:
        gradient: Per-example gradients of one variable.
        local: Geometry of the variable.
    """
    outers = [f for f in gradient.forms if isinstance(f, Outer)]
    gathers = [f for f in gradient.forms if isinstance(f, Gather)]
    if len(outers) == len(gradient.forms) == 1:
        return norms_of_products(outers[0], local)
    if (
        len(outers) + len(gathers) == len(gradient.forms)
        and len(gathers) == 1
        and len(outers) <= 1
        and all(_is_table(o, gradient.shape) for o in outers)
    ):
        return _gather(gathers[0], outers, local, gradient.shape)
    if len(gradient.forms) == 1 and isinstance(gradient.forms[0], Formed):
        value, view = gradient.forms[0]
        return sum_of_squares(local.of_matrices(view).forward(value))
    return chunks.over_examples(
        lambda t: sum_of_squares(
            local.forward(gradient.with_tensors(t).formed())
        ),
        gradient.tensors(),
        4 * gradient.size,
    )


def _gather(
    gather: Gather,
    outers: list[Outer],
    local: Local,
    shape: tuple[int, ...],
) -> tf.Tensor:
    """‖s(o + e - m)‖² = ‖s(o - m)‖² + 2⟨s²(o - m), e⟩ + ‖s e‖².

    e are the look-ups, o the other use of a tied table (or nothing).
    """
    kind = tf.float64  # the terms may cancel
    flat = [None if t is None else tf.reshape(t, [shape[0], -1]) for t in local]
    scale, centre = flat
    ids, rows = _distinct(gather)
    rows = tf.cast(rows, kind)
    base = None
    other = None
    if outers:
        (outer,) = outers
        base = tf.cast(norms_of_products(outer, local), kind)
        columns = tf.gather(outer.left[:, 0], ids, axis=2, batch_dims=1)
        columns, right = (
            tf.cast(t, kind) for t in (columns, outer.right[:, 0])
        )
        other = tf.matmul(columns, right, transpose_a=True)
    if centre is not None:
        at = tf.cast(tf.gather(centre, ids), kind)
        other = -at if other is None else other - at
        if base is None:
            moved = centre if scale is None else centre * scale
            base = tf.reduce_sum(tf.square(tf.cast(moved, kind)))
    if scale is not None:
        weights = tf.cast(tf.gather(scale, ids), kind)
        rows = rows * weights
        other = None if other is None else other * weights
    own = tf.reduce_sum(tf.square(rows), [1, 2])
    if other is None or base is None:
        return tf.cast(own, tf.float32)
    cross = 2 * tf.reduce_sum(rows * other, [1, 2])
    margin = MARGIN_32 if outers else MARGIN_64
    return with_margin([base, cross, own], margin)


def _distinct(gather: Gather) -> tuple[tf.Tensor, tf.Tensor]:
    """Ids and rows with equal ids summed at their first place, 0 elsewhere."""
    ids, rows = gather.ids, gather.rows
    if gather.distinct or ids.shape[1] == 1:
        return ids, rows
    n, steps = tf.shape(ids)[0], tf.shape(ids)[1]
    equal = tf.equal(ids[:, :, None], ids[:, None, :])
    first = tf.argmax(tf.cast(equal, tf.int8), 2, output_type=tf.int32)
    place = tf.reshape(first + steps * tf.range(n)[:, None], [-1])
    summed = tf.math.unsorted_segment_sum(
        tf.reshape(rows, [-1, rows.shape[-1]]), place, n * steps
    )
    return ids, tf.reshape(summed, tf.shape(rows))


def _is_table(outer: Outer, shape: tuple[int, ...]) -> bool:
    """Whether the matrix rows are the rows of the table."""
    order = tuple(range(len(outer.view.order)))
    return (
        not outer.view.groups
        and outer.view.order == order
        and outer.view.matrix[1] == shape[0]
    )
