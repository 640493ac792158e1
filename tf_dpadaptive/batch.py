"""One batch, with its padding known as padding all the way."""

from typing import Any, NamedTuple

import tensorflow as tf


class Batch(NamedTuple):
    """A batch of examples of fixed shape.

    Attributes:
        x: Inputs: a tensor, or a structure of tensors, of shape (n, ...).
        y: Targets of the same leading size, or None.
        sample_weight: Weights of the loss, as Keras takes them, or None.
        padding: bool (n,), True where the row is NOT an example; None where
            every row is one. Padding rows contribute nothing to anything.
    """

    x: Any
    y: Any = None
    sample_weight: Any = None
    padding: Any = None

    def __repr__(self) -> str:
        """Also says who takes it: Keras shows this where it did not."""
        parts = ", ".join(f"{k}={v!r}" for k, v in self._asdict().items())
        return (
            "a batch of `plan.batches`, which `fit` and `evaluate` of a model "
            "take that went through `tf_dpadaptive.privatize(model)`: "
            f"Batch({parts})"
        )

    @property
    def size(self) -> tf.Tensor:
        """Number of rows, padding included; int32 scalar."""
        return tf.shape(tf.nest.flatten(self.x)[0])[0]

    def without_none(self) -> "Batch":
        """Returns the batch with `()` for what is absent and no padding.

        TensorFlow's loops take empty structures, but not None.
        """
        empty = [() if part is None else part for part in self[:3]]
        return Batch(*empty, padding=())

    def as_batch_of_one(self) -> "Batch":
        """Returns one row (of `without_none`) as a batch of that example."""
        return tf.nest.map_structure(
            lambda t: tf.expand_dims(t, 0), self
        ).with_none()

    def with_none(self) -> "Batch":
        """Undoes `without_none`: what is absent is None again."""
        absent = [isinstance(p, tuple) and not p for p in self[:3]]
        parts = [
            None if gone else part
            for part, gone in zip(self, absent, strict=False)
        ]
        return Batch(*parts)

    def real(self) -> tf.Tensor:
        """Returns bool (n,): True for an example, False for padding."""
        if self.padding is None:
            return tf.ones([self.size], tf.bool)
        return tf.logical_not(self.padding)
