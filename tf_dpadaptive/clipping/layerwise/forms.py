"""The shapes in which a layer rule hands over per-example gradients.

The gradients of all examples together are never stored unless they are small.
A rule describes the gradient g_i of example i by what it is made of:

* `Outer`: g_i = Σ_t left[i, t] ⊗ right[i, t] (matrix products, convolutions);
* `Gather`: row ids[i, t] of the variable receives rows[i, t] (look-ups);
* `Formed`: g_i itself (biases, scales, anything small);
* `Deferred`: g_i formed by a function when it is asked for.

Every tensor in a form has one row an example, so a form can be cut into chunks
of examples. A variable that is used several times has the sum of its uses as
gradient: `merge` joins uses of one kind.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tf_dpadaptive.clipping.layerwise.view import MatrixView


class Outer(NamedTuple):
    """g_i = Σ_t left[i, g, t] ⊗ right[i, g, t] for each group g.

    Attributes:
        left: (n, groups, t, rows).
        right: (n, groups, t, columns).
        view: How the matrices make up the variable.
    """

    left: tf.Tensor
    right: tf.Tensor
    view: MatrixView

    @property
    def steps(self) -> int | None:
        """Static t, or None."""
        return self.left.shape[2]

    def matrices(self) -> tf.Tensor:
        """(n, groups, rows, columns)."""
        return tf.matmul(self.left, self.right, transpose_a=True)

    def wide(self) -> "Outer":
        """The same with no more rows than columns: faster to form."""
        _, rows, columns = self.view.matrix
        if rows <= columns:
            return self
        return Outer(self.right, self.left, self.view.turned())

    def formed(self, shape: Sequence[int]) -> tf.Tensor:
        """(n, *shape)."""
        del shape  # the view knows it
        return self.view.to_variable(self.matrices(), 1)


class Gather(NamedTuple):
    """g_i[ids[i, t]] += rows[i, t].

    Made by `gather`, so that every id is one of the table.

    Attributes:
        ids: int32 (n, t), each in [0, rows of the variable).
        rows: (n, t, columns).
        distinct: No id comes twice within an example, but with rows of 0.
    """

    ids: tf.Tensor
    rows: tf.Tensor
    distinct: bool = False

    def formed(self, shape: Sequence[int]) -> tf.Tensor:
        """(n, *shape)."""
        n = tf.shape(self.ids)[0]
        flat = self.ids + shape[0] * tf.range(n)[:, None]
        columns = self.rows.shape[-1]
        table = tf.math.unsorted_segment_sum(
            tf.reshape(self.rows, [-1, columns]),
            tf.reshape(flat, [-1]),
            n * shape[0],
        )
        return tf.reshape(table, [n, *shape])


class Formed(NamedTuple):
    """g_i itself.

    Attributes:
        value: (n, *variable.shape), or (n, groups, rows, columns) of a view.
        view: How such matrices make up the variable.
    """

    value: tf.Tensor
    view: MatrixView | None = None

    def formed(self, shape: Sequence[int]) -> tf.Tensor:
        """(n, *shape)."""
        if self.view is not None:
            return self.view.to_variable(self.value, 1)
        return tf.reshape(self.value, [tf.shape(self.value)[0], *shape])


class Deferred(NamedTuple):
    """g_i, formed from `tensors` when it is needed.

    Attributes:
        tensors: A structure of tensors with one row an example.
        function: From `tensors` (or some of their rows) to (n, *shape).
    """

    tensors: Any
    function: Callable[[Any], tf.Tensor]

    def formed(self, shape: Sequence[int]) -> tf.Tensor:
        """(n, *shape)."""
        del shape
        return tf.cast(self.function(self.tensors), tf.float32)


Form = Outer | Gather | Formed | Deferred


def outer(
    left: tf.Tensor, right: tf.Tensor, view: MatrixView | None = None
) -> Outer:
    """Returns an `Outer` of one group.

    Args:
        left: (n, ..., rows).
        right: (n, ..., columns), the same dimensions between.
        view: Layout of the variable; (rows, columns) by default.
    """
    if view is None:
        view = MatrixView.plain([left.shape[-1]], [right.shape[-1]])
    return Outer(
        tf.expand_dims(flat_steps(left), 1),
        tf.expand_dims(flat_steps(right), 1),
        view,
    )


def gather(
    ids: tf.Tensor, rows: tf.Tensor, size: int, *, distinct: bool = False
) -> Gather:
    """Returns a `Gather`; ids outside the table contribute nothing.

    A CPU raises on such ids, XLA and GPUs do not: there they would count as
    the rows of other examples where the gradients of all are formed.

    Args:
        ids: int32 or int64 (n, t); negative ones count from the end, as in
            `keras.ops.take`.
        rows: float32 (n, t, columns).
        size: Rows of the table.
        distinct: See `Gather`.
    """
    ids = tf.where(ids < 0, ids + size, ids)
    inside = (ids >= 0) & (ids < size)
    ids = tf.cast(tf.where(inside, ids, tf.zeros_like(ids)), tf.int32)
    rows = tf.where(inside[:, :, None], rows, tf.zeros_like(rows))
    return Gather(ids, rows, distinct)


def flat_steps(tensor: tf.Tensor) -> tf.Tensor:
    """Returns a float32 (n, t, last): all dimensions between made one."""
    tensor = tf.cast(tensor, tf.float32)
    if tensor.shape.rank == 3:
        return tensor
    if tensor.shape.rank == 2:
        return tf.expand_dims(tensor, 1)
    return tf.reshape(
        tensor,
        [
            tf.shape(tensor)[0],
            steps_of(tensor.shape[1:-1], tensor),
            tensor.shape[-1],
        ],
    )


def steps_of(middle: tf.TensorShape, tensor: tf.Tensor) -> Any:
    """Product of the dimensions between the first and the last."""
    if middle.is_fully_defined():
        return middle.num_elements()
    return tf.reduce_prod(tf.shape(tensor)[1:-1])


def sum_to(gradients: tf.Tensor, shape: tuple[int, ...]) -> tf.Tensor:
    """Sums gradients of a broadcast sum to (n, *shape).

    Args:
        gradients: (n, ..., *dims), to which `shape` was broadcast.
        shape: Shape of what was added, aligned at the end.
    """
    extra = gradients.shape.rank - 1 - len(shape)
    if extra:
        gradients = tf.reduce_sum(gradients, list(range(1, 1 + extra)))
    ones = [
        1 + axis
        for axis, size in enumerate(shape)
        if size == 1 and gradients.shape[1 + axis] != 1
    ]
    if ones:
        gradients = tf.reduce_sum(gradients, ones, keepdims=True)
    return gradients


class VariableGradient(NamedTuple):
    """The per-example gradients of one variable: the sum of some forms.

    Attributes:
        shape: The variable's shape.
        forms: What the gradient is made of, at most one `Outer` a view and
            one `Gather`.
    """

    shape: tuple[int, ...]
    forms: tuple[Form, ...]

    @property
    def size(self) -> int:
        """Number of parameters."""
        return math.prod(self.shape)

    def tensors(self) -> list[Any]:
        """What the forms are made of; one row an example."""
        return [_tensors(form) for form in self.forms]

    def with_tensors(self, tensors: Sequence[Any]) -> "VariableGradient":
        """The same made of other (fewer, say) rows."""
        forms = zip(self.forms, tensors, strict=True)
        return self._replace(forms=tuple(_rebuilt(f, t) for f, t in forms))

    def formed(self) -> tf.Tensor:
        """(n, *shape): every g_i. Large: only for a chunk of examples."""
        return tf.add_n([form.formed(self.shape) for form in self.forms])


def _tensors(form: Form) -> Any:
    if isinstance(form, Outer | Gather):
        return (form[0], form[1])
    return (form[0],)


def _rebuilt(form: Form, tensors: Any) -> Form:
    return type(form)(*tensors, *form[len(tensors) :])


def merge(shape: Sequence[int], forms: Sequence[Form]) -> VariableGradient:
    """Joins all uses of one variable.

    Args:
        shape: The variable's shape.
        forms: Its uses, at least one.
    """
    merged: list[Form] = []
    views = {f.view: None for f in forms if isinstance(f, Outer)}
    for view in views:
        uses = [f for f in forms if isinstance(f, Outer) and f.view == view]
        left = _joined([f.left for f in uses], 2)
        merged.append(Outer(left, _joined([f.right for f in uses], 2), view))
    gathers = [f for f in forms if isinstance(f, Gather)]
    if gathers:
        merged.append(
            Gather(
                _joined([f.ids for f in gathers], 1),
                _joined([f.rows for f in gathers], 1),
                len(gathers) == 1 and gathers[0].distinct,
            )
        )
    values = [
        tf.cast(f.formed(shape), tf.float32)
        for f in forms
        if isinstance(f, Formed)
    ]
    if values:
        merged.append(
            Formed(values[0] if len(values) == 1 else tf.add_n(values))
        )
    merged += [f for f in forms if isinstance(f, Deferred)]
    return VariableGradient(tuple(shape), tuple(merged))


def _joined(tensors: Sequence[tf.Tensor], axis: int) -> tf.Tensor:
    return tensors[0] if len(tensors) == 1 else tf.concat(tensors, axis)
