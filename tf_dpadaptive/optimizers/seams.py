"""The seams: what a DP optimizer answers, and what helps it to.

An optimizer is three small answers, each a pure function of state that is
already private: `geometry`, `releases` and `rule`. The defaults here are those
of DP-SGD without a rule; `base.DPOptimizer` joins them with Keras.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import keras
import tensorflow as tf
from keras import ops

from tf_dpadaptive.batch import Batch
from tf_dpadaptive.clipping.geometry import IDENTITY, Geometry
from tf_dpadaptive.optimizers.guard import GuardedOptimizer
from tf_dpadaptive.plan import PrivacyPlan


class Release(NamedTuple):
    """One vector to be released: its values and its L2 sensitivity.

    Attributes:
        values: Float32 tensors keyed by position of the variable. Raw.
        sensitivity: How far one example moves all values together; None
            hands the values out raw (non-private baselines only).
    """

    values: Mapping[int, tf.Tensor]
    sensitivity: tf.Tensor | float | None


class Seams(GuardedOptimizer):
    """Geometry, releases and rule, with their defaults."""

    #: False where the method reads raw gradients: every ε is then ∞.
    private: ClassVar[bool] = True
    #: Names of the float32 slots of a variable's shape that `rule` carries.
    slot_names: ClassVar[tuple[str, ...]] = ()
    #: Names of the optimizer's own arguments, each an attribute of the same
    #: name; only Keras' `epsilon` is kept as `stability`, because `epsilon()`
    #: is the privacy spent.
    hyperparameters: ClassVar[tuple[str, ...]] = ()
    #: Whether gradients of data-free penalties join the estimate, as in Keras;
    #: False adds η times them to the update beside the rule.
    penalty_in_estimate: ClassVar[bool] = True
    #: Whether `rule` treats each coordinate by itself. XLA on a CPU makes one
    #: pass of such a rule, and is slow where one sorts or scatters.
    elementwise: ClassVar[bool] = True
    #: Number of releases a step; together they are one Gaussian of the plan.
    num_releases: ClassVar[int] = 1

    plan: PrivacyPlan
    l2_norm_clip: float
    _slots: Sequence[Sequence[keras.Variable]]

    def geometry(self) -> Geometry:
        """Returns the coordinates in which this step's gradients are clipped.

        Must be a function of private state alone. Default: the identity.
        """
        return IDENTITY

    def clip_norm(self) -> tf.Tensor | float:
        """Returns this step's bound ζ on one example's contribution."""
        return self.l2_norm_clip

    def releases(self, mean: Mapping[int, tf.Tensor]) -> list[Release]:
        """Returns what this step releases of the clipped mean ḡ.

        Args:
            mean: Raw ḡ in the geometry's coordinates, keyed by position.
        """
        return [Release(mean, self.mean_sensitivity())]

    def observe(self, gradient_of: Callable[[Batch], Any]) -> None:
        """Looks at public data before the step's gradients are clipped.

        Args:
            gradient_of: Gradient of the compiled loss of a PUBLIC batch at the
                current weights, float32 by position of the variable.
        """

    def extra_estimates(
        self, geometry: Geometry
    ) -> list[Mapping[int, tf.Tensor]]:
        """Returns private values, by position, that `rule` takes beside."""
        return []

    def rule(
        self, learning_rate: tf.Tensor, t: tf.Tensor, *args: Any
    ) -> tuple[Any, Sequence[Any]]:
        """Returns what to subtract from one variable, and its new slots.

        Args:
            learning_rate: float32 scalar η.
            t: float32 scalar, the number of this update from 1.
            *args: One float32 estimate a release, then `extra_estimates`, then
                the slots in the order of `slot_names`.
        """
        raise NotImplementedError

    def build_slots(self, variable: keras.Variable) -> list[keras.Variable]:
        """Makes the slots of one variable; float32 whatever its dtype."""
        stem = variable.path.replace("/", "_")
        return [
            self.add_variable(
                shape=variable.shape, dtype="float32", name=f"{stem}_{name}"
            )
            for name in self.slot_names
        ]

    # ---- helpers for the seams -------------------------------------------

    @property
    def batch_size(self) -> float:
        """B, the fixed divisor."""
        return float(self.plan.expected_batch_size)

    def mean_sensitivity(self) -> tf.Tensor | float:
        """S/B: how far one example moves the clipped mean."""
        return self.plan.sensitivity_factor * self.clip_norm() / self.batch_size

    def row_norm(self, t: Any) -> Any:
        """Returns r_t, the variance of the unit noise of update t (from 1)."""
        noise = self.plan.noise
        if not noise.correlated or self.plan.noise_multiplier == 0.0:
            return 1.0
        rows = noise.row_norms_squared(int(self.plan.num_steps or 1))
        return self.table(rows, t)

    @staticmethod
    def table(values: Any, t: Any) -> Any:
        """Returns entry t (from 1) of a table over steps, as float32."""
        place = ops.cast(t, "int32") - 1
        return ops.take(ops.convert_to_tensor(values, "float32"), place)

    @property
    def noise_stddev(self) -> float:
        """τ = Sσ/B: standard deviation of independent noise on the mean."""
        factor = self.plan.sensitivity_factor * self.l2_norm_clip
        return factor * self.plan.noise_multiplier / self.batch_size

    def slot(self, name: str) -> list[tf.Tensor]:
        """Returns a slot's values, one float32 tensor a variable."""
        place = self.slot_names.index(name)
        return [tf.convert_to_tensor(s[place].value) for s in self._slots]

    @staticmethod
    def debias(beta: float, t: Any) -> Any:
        """Returns 1 - βᵗ, exact in float32 also for β close to 1."""
        if beta == 0.0:
            return ops.ones_like(t)
        return -ops.expm1(t * math.log(beta))
