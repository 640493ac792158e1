r"""DP-SGD with momentum.

    m ← μ m - η g               (μ = `momentum`; no slot when μ = 0)
    θ ← θ + m                   (Nesterov: θ ← θ + μ m - η g)

g is the privatized mean gradient.

Reference: Abadi et al., "Deep learning with differential privacy", 2016,
arXiv 1607.00133. Departures: momentum in Keras' form, with η inside the sum.
"""

from typing import Any

import keras

from tf_dpadaptive import _validate
from tf_dpadaptive.optimizers.base import DPOptimizer
from tf_dpadaptive.plan import PrivacyPlan


@keras.saving.register_keras_serializable(package="tf_dpadaptive")
class DPSGD(DPOptimizer):
    """Stochastic gradient descent on privatized gradients.

    Args:
        learning_rate: η.
        l2_norm_clip: ζ, bound on the norm of one example's gradient.
        plan: The `PrivacyPlan`.
        momentum: μ in [0, 1). Default 0.
        nesterov: Whether to look ahead along the momentum.
        **kwargs: See `DPOptimizer`.

    Privacy: one Gaussian of multiplier σ a step.
    """

    hyperparameters = ("momentum", "nesterov")

    def __init__(
        self,
        learning_rate: Any = 0.01,
        l2_norm_clip: float | None = None,
        plan: PrivacyPlan | None = None,
        *,
        momentum: float = 0.0,
        nesterov: bool = False,
        **kwargs: Any,
    ) -> None:
        _validate.unit_below_one(momentum=momentum)
        super().__init__(learning_rate, l2_norm_clip, plan, **kwargs)
        self.momentum = momentum
        self.nesterov = nesterov

    @property
    def slot_names(self) -> tuple[str, ...]:
        """`momentum`, unless it is 0."""
        return ("momentum",) if self.momentum else ()

    def rule(self, learning_rate: Any, t: Any, g: Any, *slots: Any) -> Any:
        """θ ← θ + m."""
        if not slots:
            return learning_rate * g, ()
        m = self.momentum * slots[0] - learning_rate * g
        ahead = self.momentum * m - learning_rate * g
        return (-ahead if self.nesterov else -m), (m,)
