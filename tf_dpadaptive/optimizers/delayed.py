r"""Delayed preconditioner (DP²): plain steps gather what adaptive steps use.

Cycle of s1 plain steps, then s2 adaptive ones:

    plain:     g = clipped at ζ1, noised;      G ← G + g;   θ ← θ - η1 g
               at the end of the phase: A ← γA + (1-γ)(G/s1)²  (RMSProp form)
                                        A ← A + (G/s1)²        (AdaGrad form)
                                        G ← 0
    adaptive:  w_j = g_j/(√A + ε), clipped at ζ2, noised: w;   θ ← θ - η2 w

The adaptive update is the scaled gradient itself: it is not un-scaled.

Reference: Li, Zaheer, Liu, Reddi, McMahan, Smith, "Differentially private
adaptive optimization with delayed preconditioners" (DP²), 2023, arXiv
2212.00309. Departures: s1 ≠ s2 is allowed; A starts at 0.
"""

from typing import Any

import keras
import tensorflow as tf
from keras import ops

from tf_dpadaptive import _validate
from tf_dpadaptive.clipping.geometry import Geometry
from tf_dpadaptive.optimizers.base import DPOptimizer
from tf_dpadaptive.optimizers.guard import validate_clip_norm
from tf_dpadaptive.plan import PrivacyPlan


class _Delayed(DPOptimizer):
    fixed = (*DPOptimizer.fixed, "adaptive_l2_norm_clip")
    slot_names = ("gathered", "preconditioner")
    hyperparameters = (
        "plain_steps",
        "adaptive_steps",
        "adaptive_learning_rate",
        "adaptive_l2_norm_clip",
        "epsilon",
    )

    def __init__(
        self,
        learning_rate: Any = 0.01,
        l2_norm_clip: float | None = None,
        plan: PrivacyPlan | None = None,
        *,
        plain_steps: int = 100,
        adaptive_steps: int = 100,
        adaptive_learning_rate: float | None = None,
        adaptive_l2_norm_clip: float | None = None,
        epsilon: float = 1e-8,
        **kwargs: Any,
    ) -> None:
        _validate.positive_integer(
            plain_steps=plain_steps, adaptive_steps=adaptive_steps
        )
        _validate.positive(epsilon=epsilon)
        if adaptive_learning_rate is not None:
            _validate.positive(adaptive_learning_rate=adaptive_learning_rate)
        if adaptive_l2_norm_clip is not None:
            validate_clip_norm(adaptive_l2_norm_clip=adaptive_l2_norm_clip)
        super().__init__(learning_rate, l2_norm_clip, plan, **kwargs)
        self.plain_steps = plain_steps
        self.adaptive_steps = adaptive_steps
        self.adaptive_learning_rate = adaptive_learning_rate
        self.adaptive_l2_norm_clip = adaptive_l2_norm_clip
        self.stability = epsilon

    def _place(self) -> Any:
        """Steps since the cycle began; below `plain_steps` it is plain."""
        cycle = self.plain_steps + self.adaptive_steps
        return ops.mod(ops.cast(self.iterations, "int32"), cycle)

    def _adaptive(self) -> Any:
        return ops.greater_equal(self._place(), self.plain_steps)

    def clip_norm(self) -> Any:
        """ζ1 in plain steps, ζ2 in adaptive ones."""
        adaptive = self.adaptive_l2_norm_clip
        if adaptive is None:
            return self.l2_norm_clip
        return ops.where(self._adaptive(), adaptive, self.l2_norm_clip)

    def geometry(self) -> Geometry:
        """1 in plain steps, 1/(√A + ε) in adaptive ones."""
        return Geometry(
            scale=[self._scale(a) for a in self.slot("preconditioner")]
        )

    def _scale(self, a: tf.Tensor) -> tf.Tensor:
        scale = 1.0 / (ops.sqrt(a) + self.stability)
        return ops.where(self._adaptive(), scale, ops.ones_like(scale))

    def refreshed(self, a: Any, square: Any) -> Any:
        """Returns the new A, given A and (G/s1)²."""
        raise NotImplementedError

    def rule(self, learning_rate: Any, t: Any, g: Any, G: Any, A: Any) -> Any:
        """θ ← θ - η1 g, or θ ← θ - η2 g/(√A + ε)."""
        adaptive, scale = self._adaptive(), self._scale(A)
        gathered = ops.where(adaptive, G, G + g)
        last = ops.equal(self._place(), self.plain_steps - 1)
        square = ops.square(gathered / self.plain_steps)
        new = ops.where(last, self.refreshed(A, square), A)
        gathered = ops.where(last, ops.zeros_like(gathered), gathered)
        rate = learning_rate
        if self.adaptive_learning_rate is not None:
            rate = ops.where(adaptive, self.adaptive_learning_rate, rate)
        return rate * (g * scale), (gathered, new)


@keras.saving.register_keras_serializable(package="tf_dpadaptive")
class DPRMSpropDelayed(_Delayed):
    """DP² with A as a moving average.

    Args:
        learning_rate: η1, of plain steps.
        l2_norm_clip: ζ1, of plain steps.
        plan: The `PrivacyPlan`.
        plain_steps: s1 ≥ 1. Default 100.
        adaptive_steps: s2 ≥ 1. Default 100.
        adaptive_learning_rate: η2; None is η1.
        adaptive_l2_norm_clip: ζ2, in scaled coordinates; None is ζ1.
        rho: γ in [0, 1). Default 0.9.
        epsilon: ε > 0 beside √A. Default 1e-8.
        **kwargs: See `DPOptimizer`.

    Privacy: one Gaussian of multiplier σ a step, in either phase; G and A are
        functions of released gradients.
    """

    hyperparameters = (*_Delayed.hyperparameters, "rho")

    def __init__(self, *args: Any, rho: float = 0.9, **kwargs: Any) -> None:
        _validate.unit_below_one(rho=rho)
        super().__init__(*args, **kwargs)
        self.rho = rho

    def refreshed(self, a: Any, square: Any) -> Any:
        """A ← γA + (1-γ)(G/s1)²."""
        return self.rho * a + (1 - self.rho) * square


@keras.saving.register_keras_serializable(package="tf_dpadaptive")
class DPAdagradDelayed(_Delayed):
    """DP² with A as a sum.

    Args:
        learning_rate: η1, of plain steps.
        l2_norm_clip: ζ1, of plain steps.
        plan: The `PrivacyPlan`.
        **kwargs: See `DPRMSpropDelayed` (without `rho`).

    Privacy: as `DPRMSpropDelayed`.
    """

    def refreshed(self, a: Any, square: Any) -> Any:
        """A ← A + (G/s1)²."""
        return a + square
