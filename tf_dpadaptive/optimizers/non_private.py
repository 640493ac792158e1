r"""NOT PRIVATE: the noiseless preconditioner, a baseline for comparisons.

    g_t = ḡ_t + noise, as DP-Adam; with `scale_then_privatize` as StP
    v_t = β2 v + (1-β2) ḡ_t²            <- the un-noised clipped mean
    m_t = β1 m + (1-β1) g_t;   θ ← θ - η m̂/(√v̂ + ε)

Reference: Ganesh, McMahan, Thakurta, 2025, arXiv 2507.01129, section 4 (its
"noiseless preconditioner"). Departures: none. Its state holds raw gradients,
and every ε it reports is ∞.
"""

from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf
from keras import ops

from tf_dpadaptive import _validate
from tf_dpadaptive.clipping.geometry import IDENTITY, Geometry
from tf_dpadaptive.optimizers.dp_adam import DPAdam
from tf_dpadaptive.optimizers.seams import Release


@keras.saving.register_keras_serializable(package="tf_dpadaptive")
class NonPrivatePreconditionerAdam(DPAdam):
    """NOT PRIVATE. DP-Adam with the un-noised gradient in the second moment.

    Args:
        learning_rate: η.
        l2_norm_clip: ζ.
        plan: The `PrivacyPlan`: noise on the first moment only.
        scale_then_privatize: Whether to clip and noise in coordinates
            s_t = 1/(√v̂_{t-1} + ε₁).
        scale_epsilon: ε₁ > 0. Default 1e-3.
        **kwargs: See `DPAdam`.

    Privacy: none; ε = ∞.
    """

    private = False
    num_releases = 2
    hyperparameters = (
        *DPAdam.hyperparameters,
        "scale_then_privatize",
        "scale_epsilon",
    )

    def __init__(
        self,
        *args: Any,
        scale_then_privatize: bool = False,
        scale_epsilon: float = 1e-3,
        **kwargs: Any,
    ) -> None:
        _validate.positive(scale_epsilon=scale_epsilon)
        super().__init__(*args, **kwargs)
        self.scale_then_privatize = scale_then_privatize
        self.scale_epsilon = scale_epsilon

    def geometry(self) -> Geometry:
        """s_t = 1/(√v̂_{t-1} + ε₁), or the identity."""
        if not self.scale_then_privatize:
            return IDENTITY
        steps = ops.cast(self.iterations, "float32")
        debias = self.debias(self.beta_2, ops.maximum(steps, 1.0))
        return Geometry(
            scale=[
                1.0 / (ops.sqrt(v / debias) + self.scale_epsilon)
                for v in self.slot("velocity")
            ]
        )

    def releases(self, mean: Mapping[int, tf.Tensor]) -> list[Release]:
        """The noised mean, and the raw one."""
        return [Release(mean, self.mean_sensitivity()), Release(mean, None)]

    def rule(
        self, learning_rate: Any, t: Any, g: Any, raw: Any, m: Any, v: Any
    ) -> Any:
        """θ ← θ - η m̂/(√v̂ + ε)."""
        m = self.beta_1 * m + (1 - self.beta_1) * g
        v = self.beta_2 * v + (1 - self.beta_2) * ops.square(raw)
        m_hat = m / self.debias(self.beta_1, t)
        v_hat = v / self.debias(self.beta_2, t)
        step = m_hat / (ops.sqrt(v_hat) + self.stability)
        return learning_rate * step, (m, v)
