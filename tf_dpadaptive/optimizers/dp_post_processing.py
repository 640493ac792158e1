r"""Any Keras optimizer as post-processing of the privatized gradient.

    g_t = (1/B) Σ_j clip(g_{t,j}, ζ) + (S/B)(C⁻¹z)_t;   inner.apply(g_t)

Whatever a Keras optimizer does with g_t costs no privacy.

Reference: Ganesh, McMahan, Thakurta, "On design principles for private adaptive
optimizers", 2025, arXiv 2507.01129, Algorithm 1. Departures: none.
"""

from collections.abc import Sequence
from typing import Any

import keras

from tf_dpadaptive.optimizers.base import DPOptimizer
from tf_dpadaptive.optimizers.guard import REFUSED_ARGUMENTS
from tf_dpadaptive.plan import PrivacyPlan


@keras.saving.register_keras_serializable(package="tf_dpadaptive")
class DPPostProcessing(DPOptimizer):
    """Runs a Keras optimizer on privatized gradients.

    Args:
        optimizer: A Keras optimizer (object, name or config) with no
            `clipnorm`, `clipvalue`, `global_clipnorm`, `loss_scale_factor` or
            `gradient_accumulation_steps`. Learning rate, weight decay and EMA
            are its own.
        l2_norm_clip: ζ, bound on the norm of one example's gradient.
        plan: The `PrivacyPlan`.
        **kwargs: `name`, `seed`; see `DPOptimizer`.

    Raises:
        TypeError: if `optimizer` is private already, or scales losses.

    Privacy: one Gaussian of multiplier σ a step.
    """

    def __init__(
        self,
        optimizer: Any,
        l2_norm_clip: float | None = None,
        plan: PrivacyPlan | None = None,
        **kwargs: Any,
    ) -> None:
        inner = keras.optimizers.get(optimizer)
        if isinstance(inner, DPOptimizer):
            raise TypeError(
                "`optimizer` must be a plain Keras optimizer: a DP optimizer "
                "clips and adds noise by itself. Received: "
                f"optimizer={type(inner).__name__}."
            )
        if isinstance(inner, keras.optimizers.LossScaleOptimizer):
            raise TypeError(
                "`optimizer` must not be a LossScaleOptimizer: the private "
                "clip must see unscaled gradients. Received: "
                f"optimizer={type(inner).__name__}. Pass its inner optimizer."
            )
        own = [name for name in ("weight_decay", "use_ema") if kwargs.get(name)]
        if own:
            raise ValueError(
                f"Set {own} on the inner `optimizer`. Received: "
                + ", ".join(f"{name}={kwargs[name]!r}" for name in own)
                + "."
            )
        for name in REFUSED_ARGUMENTS:
            if getattr(inner, name, None) is not None:
                kwargs[name] = getattr(inner, name)
        super().__init__(0.0, l2_norm_clip, plan, **kwargs)
        self.inner_optimizer = inner

    def build(self, variables: Sequence[keras.Variable]) -> None:
        """Builds the inner optimizer's state."""
        if not self.built:
            self.inner_optimizer.build(variables)
            super().build(variables)

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        """Hands privatized gradients to the inner optimizer."""
        self._require_private_step("apply")
        self.inner_optimizer.apply(grads, trainable_variables)
        self._iterations.assign_add(1)

    @property
    def variables(self) -> list[keras.Variable]:
        """Own variables, then those of the inner optimizer."""
        return self._variables + self.inner_optimizer.variables

    @property
    def learning_rate(self) -> Any:
        """The inner optimizer's learning rate."""
        return self.inner_optimizer.learning_rate

    @learning_rate.setter
    def learning_rate(self, learning_rate: Any) -> None:
        self.inner_optimizer.learning_rate = learning_rate

    def finalize_variable_values(self, var_list: Any) -> None:
        """Takes over moving averages, where the inner optimizer keeps any."""
        self.inner_optimizer.finalize_variable_values(var_list)

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments, without seed or secret."""
        config = super().get_config()
        return {
            "optimizer": keras.saving.serialize_keras_object(
                self.inner_optimizer
            ),
            **{
                key: config[key]
                for key in ("l2_norm_clip", "plan", "ledger", "name")
            },
        }

    @classmethod
    def from_config(
        cls, config: dict[str, Any], custom_objects: Any = None
    ) -> "DPPostProcessing":
        """Returns the optimizer that `get_config` described."""
        config = dict(config)
        config["optimizer"] = keras.saving.deserialize_keras_object(
            config["optimizer"], custom_objects=custom_objects
        )
        return super().from_config(config, custom_objects=custom_objects)
