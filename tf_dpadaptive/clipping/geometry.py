"""The geometry seam: in which coordinates per-example gradients are clipped.

A geometry maps the gradient g of one example to w = scale ⊙ (g - centre) before
the clip, and a released mean w back to w / scale + centre. Scale and centre are
functions of already-private state, so they cost no privacy.
"""

from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf


class Geometry(NamedTuple):
    """Per-variable scale and centre; None stands for 1 and 0.

    Attributes:
        scale: Positive float32 tensors, one a trainable variable in order,
            of the variable's shape (or broadcast to it), or None.
        centre: float32 tensors likewise, or None.
    """

    scale: Sequence[tf.Tensor] | None = None
    centre: Sequence[tf.Tensor] | None = None

    def forward(self, index: int, gradient: tf.Tensor) -> tf.Tensor:
        """Returns w = scale ⊙ (gradient - centre) in float32.

        Args:
            index: Position of the variable.
            gradient: Gradients of shape (..., *variable.shape).
        """
        gradient = tf.cast(gradient, tf.float32)
        if self.centre is not None:
            gradient = gradient - self.centre[index]
        if self.scale is not None:
            gradient = gradient * self.scale[index]
        return gradient

    def inverse(self, index: int, released: tf.Tensor) -> tf.Tensor:
        """Returns released / scale + centre."""
        if self.scale is not None:
            released = released / self.scale[index]
        if self.centre is not None:
            released = released + self.centre[index]
        return released


IDENTITY = Geometry()
