r"""The rules of methods that release the mean and the square of the mean.

    m_t = β1 m + (1-β1) g1    v_t = β2 v + (1-β2) g2
    θ ← θ - η m̂/(√max(v̂, 0) + ε)                               (Adam)
    v_t = v_{t-1} + g2;   θ ← θ - η g1/(√max(v, 0) + ε)       (AdaGrad)

g2 estimates the SQUARE OF THE MEAN ḡ², not the mean of squares; it can be
negative.
"""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf
from keras import ops

from tf_dpadaptive import _validate
from tf_dpadaptive.optimizers.dp_adagrad import DPAdagrad
from tf_dpadaptive.optimizers.dp_adam import DPAdam


def project(
    mean: Mapping[int, tf.Tensor], radius: float
) -> dict[int, tf.Tensor]:
    """Returns Π_radius(mean): scaled to norm ≤ radius over all variables.

    Projection does not increase distances. Poisson batches of more than B
    examples can have ||ḡ|| > ζ.
    """
    # In float64: XLA on a CPU adds up one after the other.
    squares = [tf.square(tf.cast(v, tf.float64)) for v in mean.values()]
    norm = tf.sqrt(tf.add_n([tf.reduce_sum(square) for square in squares]))
    factor = tf.cast(radius / tf.maximum(norm, radius), tf.float32)
    return {i: factor * v for i, v in mean.items()}


class TwoMomentsAdam(DPAdam):
    """Adam whose second moment has a release of its own."""

    num_releases = 2

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # The root is 0 wherever the noisy v is negative.
        _validate.positive(epsilon=self.stability)

    def rule(
        self, learning_rate: Any, t: Any, g1: Any, g2: Any, m: Any, v: Any
    ) -> Any:
        """θ ← θ - η m̂/(√max(v̂, 0) + ε)."""
        m = self.beta_1 * m + (1 - self.beta_1) * g1
        v = self.beta_2 * v + (1 - self.beta_2) * g2
        m_hat = m / self.debias(self.beta_1, t)
        v_hat = v / self.debias(self.beta_2, t)
        root = ops.sqrt(ops.maximum(v_hat, 0.0))
        return learning_rate * m_hat / (root + self.stability), (m, v)


class TwoMomentsAdagrad(DPAdagrad):
    """AdaGrad whose accumulator has a release of its own."""

    num_releases = 2

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # The root is 0 wherever the noisy v is negative.
        _validate.positive(epsilon=self.stability)

    def rule(self, learning_rate: Any, t: Any, g1: Any, g2: Any, v: Any) -> Any:
        """θ ← θ - η g1/(√max(v, 0) + ε)."""
        v = v + g2
        root = ops.sqrt(ops.maximum(v, 0.0))
        return learning_rate * g1 / (root + self.stability), (v,)
