r"""DP-AdaGrad: AdaGrad as post-processing of the privatized gradient.

    v_t = v_{t-1} + g_t²
    θ ← θ - η g_t/(√v_t + ε)

Reference: Ganesh, McMahan, Thakurta, "On design principles for private adaptive
optimizers", 2025, arXiv 2507.01129. Departures: v starts at 0 unless
`initial_accumulator_value` is given (the paper is silent; Keras starts at 0.1).
"""

from typing import Any

import keras
from keras import ops

from tf_dpadaptive import _validate
from tf_dpadaptive.optimizers.base import DPOptimizer
from tf_dpadaptive.plan import PrivacyPlan


@keras.saving.register_keras_serializable(package="tf_dpadaptive")
class DPAdagrad(DPOptimizer):
    """AdaGrad on privatized gradients.

    Args:
        learning_rate: η.
        l2_norm_clip: ζ, bound on the norm of one example's gradient.
        plan: The `PrivacyPlan`.
        initial_accumulator_value: First value of v, ≥ 0. Default 0.
        epsilon: ε ≥ 0 beside √v. Default 1e-7, as in Keras.
        **kwargs: See `DPOptimizer`.

    Privacy: one Gaussian of multiplier σ a step.
    """

    slot_names = ("accumulator",)
    hyperparameters = ("initial_accumulator_value", "epsilon")

    def __init__(
        self,
        learning_rate: Any = 1e-3,
        l2_norm_clip: float | None = None,
        plan: PrivacyPlan | None = None,
        *,
        initial_accumulator_value: float = 0.0,
        epsilon: float = 1e-7,
        **kwargs: Any,
    ) -> None:
        _validate.non_negative(
            initial_accumulator_value=initial_accumulator_value,
            epsilon=epsilon,
        )
        super().__init__(learning_rate, l2_norm_clip, plan, **kwargs)
        self.initial_accumulator_value = initial_accumulator_value
        self.stability = epsilon

    def build_slots(self, variable: Any) -> Any:
        """The accumulator, at its first value."""
        slots = super().build_slots(variable)
        slots[0].assign(
            ops.full(variable.shape, self.initial_accumulator_value)
        )
        return slots

    def rule(self, learning_rate: Any, t: Any, g: Any, v: Any) -> Any:
        """θ ← θ - η g/(√v + ε)."""
        v = v + ops.square(g)
        return learning_rate * g / (ops.sqrt(v) + self.stability), (v,)
