r"""DP-Adam and DP-AdamW: Adam as post-processing of the privatized gradient.

    m_t = β1 m + (1-β1) g_t          v_t = β2 v + (1-β2) g_t²
    m̂ = m_t/(1-β1ᵗ)                  v̂ = v_t/(1-β2ᵗ)
    θ ← θ - η m̂/(√v̂ + ε)

The noise biases the second moment: E[v̂] = v̂* + Φ with Φ = (σS/B)² for
independent noise; see `DPAdamBiasCorrected`.

Reference: Ganesh, McMahan, Thakurta, "On design principles for private adaptive
optimizers", 2025, arXiv 2507.01129, Algorithms 1 to 5. Departures: none; note
that Keras' own Adam puts ε beside √v, not √v̂ (`DPPostProcessing` gives exactly
Keras' arithmetic).
"""

from typing import Any

import keras
from keras import ops

from tf_dpadaptive import _validate
from tf_dpadaptive.optimizers.base import DPOptimizer
from tf_dpadaptive.plan import PrivacyPlan


@keras.saving.register_keras_serializable(package="tf_dpadaptive")
class DPAdam(DPOptimizer):
    """Adam on privatized gradients.

    Args:
        learning_rate: η.
        l2_norm_clip: ζ, bound on the norm of one example's gradient.
        plan: The `PrivacyPlan`.
        beta_1: β1 in [0, 1). Default 0.9.
        beta_2: β2 in [0, 1). Default 0.999.
        epsilon: ε ≥ 0 beside √v̂. Default 1e-7, as in Keras.
        **kwargs: See `DPOptimizer`.

    Privacy: one Gaussian of multiplier σ a step; the moments are functions of
        released gradients.
    """

    slot_names = ("momentum", "velocity")
    hyperparameters = ("beta_1", "beta_2", "epsilon")

    def __init__(
        self,
        learning_rate: Any = 1e-3,
        l2_norm_clip: float | None = None,
        plan: PrivacyPlan | None = None,
        *,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        **kwargs: Any,
    ) -> None:
        _validate.unit_below_one(beta_1=beta_1, beta_2=beta_2)
        _validate.non_negative(epsilon=epsilon)
        super().__init__(learning_rate, l2_norm_clip, plan, **kwargs)
        self.beta_1 = beta_1
        self.beta_2 = beta_2
        self.stability = epsilon

    def rule(self, learning_rate: Any, t: Any, g: Any, m: Any, v: Any) -> Any:
        """θ ← θ - η m̂/(√v̂ + ε)."""
        m = self.beta_1 * m + (1 - self.beta_1) * g
        v = self.beta_2 * v + (1 - self.beta_2) * ops.square(g)
        m_hat = m / self.debias(self.beta_1, t)
        v_hat = v / self.debias(self.beta_2, t)
        step = m_hat / (ops.sqrt(v_hat) + self.stability)
        return learning_rate * step, (m, v)


@keras.saving.register_keras_serializable(package="tf_dpadaptive")
class DPAdamW(DPAdam):
    """DP-Adam with decoupled weight decay.

    Args:
        learning_rate: η.
        l2_norm_clip: ζ.
        plan: The `PrivacyPlan`.
        weight_decay: θ ← θ - η · weight_decay · θ before each update; a
            function of the weights alone. Default 0.004, as in Keras.
        **kwargs: See `DPAdam`.

    Reference: Loshchilov & Hutter, 2019, arXiv 1711.05101.
    """

    def __init__(
        self,
        learning_rate: Any = 1e-3,
        l2_norm_clip: float | None = None,
        plan: PrivacyPlan | None = None,
        *,
        weight_decay: float = 0.004,
        **kwargs: Any,
    ) -> None:
        if weight_decay is None:
            raise ValueError(
                "`weight_decay` of DPAdamW must be a number >= 0; use DPAdam "
                "to go without. Received: weight_decay=None."
            )
        super().__init__(
            learning_rate,
            l2_norm_clip,
            plan,
            weight_decay=weight_decay,
            **kwargs,
        )
