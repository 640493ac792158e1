r"""Scale-then-privatize (StP): clip and noise in the preconditioned space.

    s_t = 1/(√v̂_{t-1} + ε₁),  v̂_0 = 0
    g_t = [ (1/B) Σ_j clip(s_t ⊙ g_{t,j}, ζ) + (S/B)(C⁻¹z)_t ] / s_t
    then Adam (or AdaGrad) on g_t

The noise has standard deviation (Sσ/B)(√v̂ + ε₁) per coordinate: small where
gradients are small. AdaGrad form: s_t = 1/(√v_{t-1} + ε₁).

ε₁ is `scale_epsilon`. Step 1 is DP-SGD with clip norm ζ·ε₁, so a tiny ε₁ (1e-8)
leaves v near 0 for thousands of steps; a useful ζ is of order √d once v̂ matches
the gradients (d parameters). The Adam form is stable only while τ√r < 1, τ =
Sσ/B (its fixed point is √v = τ√r·ε₁/(1 - τ√r)); in the AdaGrad form E v grows
like (1 + τ²r)ᵗ, harmless only for T·τ²·r ≤ 1. Both warn otherwise.

Reference: Ganesh, McMahan, Thakurta, "On design principles for private adaptive
optimizers", 2025, arXiv 2507.01129, Algorithm 8. Departures: none.
"""

import math
import warnings
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf
from keras import ops

from tf_dpadaptive import _validate
from tf_dpadaptive.clipping.geometry import Geometry
from tf_dpadaptive.optimizers.base import DPOptimizer
from tf_dpadaptive.optimizers.dp_adagrad import DPAdagrad
from tf_dpadaptive.optimizers.dp_adam import DPAdam


class _ScaleThenPrivatize(DPOptimizer):
    def __init__(
        self, *args: Any, scale_epsilon: float = 1e-3, **kwargs: Any
    ) -> None:
        _validate.positive(scale_epsilon=scale_epsilon)
        super().__init__(*args, **kwargs)
        self.scale_epsilon = scale_epsilon
        if scale_epsilon * self.l2_norm_clip < 1e-6:
            warnings.warn(
                f"scale_epsilon * l2_norm_clip = "
                f"{scale_epsilon * self.l2_norm_clip:.1e} < 1e-6: the first "
                "step clips to that norm, and v stays near 0 for thousands of "
                "steps. Raise one of them (a useful l2_norm_clip is of order "
                "the root of the number of parameters).",
                stacklevel=3,
            )

    def build(self, variables: Sequence[keras.Variable]) -> None:
        """Builds the state; warns where the method can't be stable."""
        if not self.built:
            super().build(variables)
            self._warn_if_unstable(self._largest_row_norm())
            d = sum(math.prod(v.shape) for v in variables)
            self._warn_if_slow(math.sqrt(d))

    def _warn_if_slow(self, root: float) -> None:
        """With a tiny ε₁, v takes thousands of steps to grow at ζ ~ √d."""
        clip = self.l2_norm_clip
        if self.scale_epsilon < 1e-5 and clip < 10 * root:
            warnings.warn(
                f"scale_epsilon={self.scale_epsilon:.1e} with l2_norm_clip="
                f"{clip:.3g} < 10√d = {10 * root:.3g}: v starts near 0 and may "
                "take thousands of steps to match the gradients. Raise "
                "scale_epsilon.",
                stacklevel=4,
            )

    def _largest_row_norm(self) -> float:
        noise, steps = self.plan.noise, self.plan.num_steps
        if not noise.correlated:
            return 1.0
        return float(max(noise.row_norms_squared(int(steps or 1))))

    def _warn_if_unstable(self, row_norm: float) -> None:
        raise NotImplementedError

    def second_moment(self) -> list[tf.Tensor]:
        """Returns v̂_{t-1} (0 at the first step), one tensor a variable."""
        raise NotImplementedError

    def geometry(self) -> Geometry:
        """s_t = 1/(√v̂_{t-1} + ε₁)."""
        return Geometry(
            scale=[
                1.0 / (ops.sqrt(v) + self.scale_epsilon)
                for v in self.second_moment()
            ]
        )


@keras.saving.register_keras_serializable(package="tf_dpadaptive")
class DPAdamScaleThenPrivatize(_ScaleThenPrivatize, DPAdam):
    """Adam with clip and noise in preconditioned coordinates.

    Args:
        learning_rate: η.
        l2_norm_clip: ζ, in scaled coordinates: of order √d, not 1.
        plan: The `PrivacyPlan`.
        scale_epsilon: ε₁ > 0 beside √v̂ in the scale. Default 1e-3.
        **kwargs: See `DPAdam`.

    Privacy: one Gaussian of multiplier σ a step; the scale is a function of
        released gradients.
    """

    hyperparameters = (*DPAdam.hyperparameters, "scale_epsilon")

    def second_moment(self) -> list[tf.Tensor]:
        """v̂_{t-1} = v_{t-1}/(1-β2^{t-1})."""
        steps = ops.cast(self.iterations, "float32")
        debias = self.debias(self.beta_2, ops.maximum(steps, 1.0))
        return [v / debias for v in self.slot("velocity")]

    def _warn_if_unstable(self, row_norm: float) -> None:
        ratio = self.noise_stddev * math.sqrt(row_norm)
        if ratio >= 1:
            warnings.warn(
                f"σζ√r/B = {ratio:.3g} >= 1: scale-then-privatize with Adam "
                "feeds its own noise back and v grows without bound. Raise "
                "the batch size, lower l2_norm_clip, or use DPAdam.",
                stacklevel=3,
            )


@keras.saving.register_keras_serializable(package="tf_dpadaptive")
class DPAdagradScaleThenPrivatize(_ScaleThenPrivatize, DPAdagrad):
    """AdaGrad with clip and noise in preconditioned coordinates.

    Args:
        learning_rate: η.
        l2_norm_clip: ζ, in scaled coordinates: of order √d, not 1.
        plan: The `PrivacyPlan`.
        scale_epsilon: ε₁ > 0 beside √v in the scale. Default 1e-3.
        **kwargs: See `DPAdagrad`.

    Privacy: as `DPAdamScaleThenPrivatize`.
    """

    hyperparameters = (*DPAdagrad.hyperparameters, "scale_epsilon")

    def second_moment(self) -> list[tf.Tensor]:
        """v_{t-1}."""
        return self.slot("accumulator")

    def _warn_if_unstable(self, row_norm: float) -> None:
        steps = self.plan.num_steps
        growth = (steps or math.inf) * self.noise_stddev**2 * row_norm
        if self.noise_stddev > 0 and growth > 1:
            warnings.warn(
                f"T(σζ/B)²r = {growth:.3g} > 1 (num_steps={steps}): "
                "scale-then-privatize with AdaGrad feeds its own noise back, "
                "and v grows exponentially. Train for fewer steps, raise the "
                "batch size, lower l2_norm_clip, or use the Adam form.",
                stacklevel=3,
            )
