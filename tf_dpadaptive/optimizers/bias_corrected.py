r"""Bias correction: the noise's share is taken off the second moment.

    φ_t = β2 φ_{t-1} + (1-β2) τ² r_t        bias_t = φ_t/(1-β2ᵗ)     (Adam)
    bias_t = Σ_{i≤t} τ² r_i                                      (AdaGrad)
    θ ← θ - η m̂/(√max(v̂ - bias_t, floor) + ε)

τ = Sσ/B; r_t = ||row t of C⁻¹||², 1 for independent noise, where bias_t = τ².

References: Tang, Shpilevskiy, Lécuyer, "DP-AdamBC", 2024, arXiv 2312.14334;
Ganesh, McMahan, Thakurta, 2025, arXiv 2507.01129, Algorithm 7. Departures: one
class for both: `floor=0` with a tuned `epsilon` is Ganesh et al., `floor=1e-8`
with `epsilon=0` is Tang et al. With correlated noise Φ is replaced by bias_t.
"""

from typing import Any

import keras
import numpy as np
from keras import ops

from tf_dpadaptive import _validate
from tf_dpadaptive.optimizers.dp_adagrad import DPAdagrad
from tf_dpadaptive.optimizers.dp_adam import DPAdam


def _refuse_division_by_zero(floor: float, epsilon: float) -> None:
    if floor == 0 and epsilon == 0:
        raise ValueError(
            "`epsilon` and `floor` must not both be 0: where noise dominates, "
            "half of v̂ - bias is negative, and would be divided by 0. "
            f"Received: epsilon={epsilon!r}, floor={floor!r}."
        )


@keras.saving.register_keras_serializable(package="tf_dpadaptive")
class DPAdamBiasCorrected(DPAdam):
    """DP-Adam without the noise's share of v̂.

    Args:
        learning_rate: η.
        l2_norm_clip: ζ.
        plan: The `PrivacyPlan`.
        floor: Least value under the root, ≥ 0 (> 0 where `epsilon` is 0).
            Default 0.
        **kwargs: See `DPAdam`; tune `epsilon` (1e-4 in Ganesh et al.).

    Privacy: one Gaussian of multiplier σ a step; bias_t is public.
    """

    hyperparameters = (*DPAdam.hyperparameters, "floor")

    def __init__(self, *args: Any, floor: float = 0.0, **kwargs: Any) -> None:
        _validate.non_negative(floor=floor)
        super().__init__(*args, **kwargs)
        _refuse_division_by_zero(floor, self.stability)
        self.floor = floor

    def noise_bias(self, t: Any) -> Any:
        """Returns bias_t, the noise's expected share of v̂_t."""
        if not self.plan.noise.correlated:
            return self.noise_stddev**2
        from scipy.signal import lfilter

        n, beta = int(self.plan.num_steps or 1), self.beta_2
        rows = self.plan.noise.row_norms_squared(n)
        phi = lfilter([1 - beta], [1, -beta], self.noise_stddev**2 * rows)
        debias = -np.expm1(np.arange(1, n + 1) * np.log(beta)) if beta else 1.0
        return self.table(phi / debias, t)

    def rule(self, learning_rate: Any, t: Any, g: Any, m: Any, v: Any) -> Any:
        """θ ← θ - η m̂/(√max(v̂ - bias_t, floor) + ε)."""
        m = self.beta_1 * m + (1 - self.beta_1) * g
        v = self.beta_2 * v + (1 - self.beta_2) * ops.square(g)
        m_hat = m / self.debias(self.beta_1, t)
        v_hat = v / self.debias(self.beta_2, t)
        root = ops.sqrt(ops.maximum(v_hat - self.noise_bias(t), self.floor))
        return learning_rate * m_hat / (root + self.stability), (m, v)


@keras.saving.register_keras_serializable(package="tf_dpadaptive")
class DPAdagradBiasCorrected(DPAdagrad):
    """DP-AdaGrad without the noise's share of v.

    Args:
        learning_rate: η.
        l2_norm_clip: ζ.
        plan: The `PrivacyPlan`.
        floor: Least value under the root, ≥ 0 (> 0 where `epsilon` is 0).
            Default 0.
        **kwargs: See `DPAdagrad`.

    Privacy: one Gaussian of multiplier σ a step; bias_t is public.
    """

    hyperparameters = (*DPAdagrad.hyperparameters, "floor")

    def __init__(self, *args: Any, floor: float = 0.0, **kwargs: Any) -> None:
        _validate.non_negative(floor=floor)
        super().__init__(*args, **kwargs)
        _refuse_division_by_zero(floor, self.stability)
        self.floor = floor

    def noise_bias(self, t: Any) -> Any:
        """Returns bias_t, the noise's expected share of v_t."""
        variance = self.noise_stddev**2
        if not self.plan.noise.correlated:
            return variance * t
        n = int(self.plan.num_steps or 1)
        rows = self.plan.noise.row_norms_squared(n)
        return self.table(variance * np.cumsum(rows), t)

    def rule(self, learning_rate: Any, t: Any, g: Any, v: Any) -> Any:
        """θ ← θ - η g/(√max(v - bias_t, floor) + ε)."""
        v = v + ops.square(g)
        root = ops.sqrt(ops.maximum(v - self.noise_bias(t), self.floor))
        return learning_rate * g / (root + self.stability), (v,)
