"""How a variable is laid out as matrices."""

import dataclasses
import math
from collections.abc import Sequence

import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class MatrixView:
    """How a variable is laid out as groups of (rows × columns) matrices.

    The variable is the transpose by `order` of a tensor whose leading
    dimensions are the groups, then those of the rows, then the columns.

    Attributes:
        groups: Sizes of the group dimensions.
        rows: Sizes of the row dimensions.
        columns: Sizes of the column dimensions.
        order: `variable = transpose(tensor, order)`.
        shape: The variable's shape, where the transposed tensor still has to
            be reshaped to it; None where it need not.
    """

    groups: tuple[int, ...]
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    order: tuple[int, ...]
    shape: tuple[int, ...] | None = None

    @classmethod
    def plain(cls, rows: Sequence[int], columns: Sequence[int]) -> "MatrixView":
        """A variable of shape (*rows, *columns), one group."""
        order = range(len(rows) + len(columns))
        return cls((), tuple(rows), tuple(columns), tuple(order))

    @property
    def matrix(self) -> tuple[int, int, int]:
        """(groups, rows, columns)."""
        return (
            math.prod(self.groups),
            math.prod(self.rows),
            math.prod(self.columns),
        )

    @property
    def size(self) -> int:
        """Number of parameters."""
        return math.prod(self.matrix)

    def to_variable(self, tensor: tf.Tensor, leading: int = 0) -> tf.Tensor:
        """From (..., groups, rows, columns) to (..., *variable.shape)."""
        front = tf.shape(tensor)[:leading]
        if self.order != tuple(range(len(self._dims))):
            tensor = tf.reshape(tensor, tf.concat([front, self._dims], 0))
            order = [*range(leading), *(leading + a for a in self.order)]
            tensor = tf.transpose(tensor, order)
        shape = self.shape or [self._dims[axis] for axis in self.order]
        return tf.reshape(tensor, tf.concat([front, shape], 0))

    def to_matrix(self, variable: tf.Tensor) -> tf.Tensor:
        """From the variable's shape to (groups, rows, columns)."""
        if self.order != tuple(range(len(self._dims))):
            shape = [self._dims[axis] for axis in self.order]
            inverse = [self.order.index(i) for i in range(len(self.order))]
            variable = tf.transpose(tf.reshape(variable, shape), inverse)
        return tf.reshape(variable, self.matrix)

    def turned(self) -> "MatrixView":
        """The same variable, with rows and columns exchanged."""
        groups, rows, columns = map(len, (self.groups, self.rows, self.columns))
        place = {
            **{i: i for i in range(groups)},
            **{groups + i: groups + columns + i for i in range(rows)},
            **{groups + rows + i: groups + i for i in range(columns)},
        }
        order = tuple(place[axis] for axis in self.order)
        return MatrixView(
            self.groups, self.columns, self.rows, order, self.shape
        )

    @property
    def _dims(self) -> tuple[int, ...]:
        return (*self.groups, *self.rows, *self.columns)
