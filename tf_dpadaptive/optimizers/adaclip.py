r"""AdaCliP: coordinates are centred and scaled before the clip.

    w_j = (g_j - m)/b        ŵ_j = w_j/max(1, ||w_j||), 0 for a masked row
    g̃ = b ⊙ (1/B)(Σ_j ŵ_j + S (C⁻¹z)_t) + m,     b_i = √s_i · √(Σ_k s_k)
    θ ← θ - η g̃
    v = min(max(B((g̃ - m)² - b²S²σ²r_t/B²), h1), h2)       (with the old m)
    m ← β1 m + (1-β1) g̃          s² ← β2 s² + (1-β2) v

S = 1 (2 under replace-one): a masked row contributes 0, never clip(-m/b). g̃ is
unbiased apart from clipping under Poisson batches, but given n < B examples it
leans towards m. While m lags behind, B(E ḡ - m)² is added to v, and clamping
before the average biases it upwards.

Reference: Pichapati, Suresh, Yu, Reddi, Kumar, "AdaCliP: adaptive clipping for
private SGD", 2019, arXiv 1908.07643 (quantile-based adaptive clipping, arXiv
1905.03871, is another method that is called AdaClip elsewhere). Departures: the
factor B in v turns the variance of a batch mean into the per-example variance
that Theorem 1 needs (`variance="batch"` drops it); s starts at ζ/√d and m at 0,
so that step 1 is plain DP-SGD with clip norm ζ.
"""

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf
from keras import ops

from tf_dpadaptive import _validate
from tf_dpadaptive.clipping.geometry import Geometry
from tf_dpadaptive.optimizers.base import DPOptimizer
from tf_dpadaptive.plan import PrivacyPlan


@keras.saving.register_keras_serializable(package="tf_dpadaptive")
class AdaCliP(DPOptimizer):
    """SGD with clip and noise fitted to each coordinate's mean and spread.

    Args:
        learning_rate: η.
        l2_norm_clip: ζ of the first step; later b follows the gradients.
        plan: The `PrivacyPlan`.
        h2: Largest per-example variance of a coordinate, > h1; tune it.
        h1: Smallest one, > 0. Default 1e-12.
        beta_1: β1 of m, in [0, 1). Default 0.99.
        beta_2: β2 of s², in [0, 1). Default 0.9.
        variance: `"per_example"` or `"batch"`.
        **kwargs: See `DPOptimizer`.

    Privacy: one Gaussian of multiplier σ a step, in coordinates that are
        functions of released values.
    """

    slot_names = ("mean", "variance")
    hyperparameters = ("h2", "h1", "beta_1", "beta_2", "variance")
    penalty_in_estimate = False

    def __init__(
        self,
        learning_rate: Any = 0.01,
        l2_norm_clip: float | None = None,
        plan: PrivacyPlan | None = None,
        *,
        h2: float,
        h1: float = 1e-12,
        beta_1: float = 0.99,
        beta_2: float = 0.9,
        variance: str = "per_example",
        **kwargs: Any,
    ) -> None:
        _validate.positive(h1=h1, h2=h2)
        if h2 <= h1:
            raise ValueError(
                f"`h2` must be > h1. Received: h2={h2!r}, h1={h1!r}."
            )
        _validate.unit_below_one(beta_1=beta_1, beta_2=beta_2)
        _validate.one_of(("per_example", "batch"), variance=variance)
        super().__init__(learning_rate, l2_norm_clip, plan, **kwargs)
        self.h1, self.h2 = h1, h2
        self.beta_1, self.beta_2 = beta_1, beta_2
        self.variance = variance

    def build(self, variables: Sequence[keras.Variable]) -> None:
        """Starts at s = ζ/√d, m = 0."""
        if self.built:
            return
        super().build(variables)
        d = sum(math.prod(v.shape) for v in variables)
        for _, variance in self._slots:
            first = self.l2_norm_clip**2 / d
            variance.assign(ops.full(variance.shape, first))
        self._warn_if_noise_feeds_itself(d)

    def _warn_if_noise_feeds_itself(self, d: int) -> None:
        """The noise alone drives s² where d·S²σ²/B exceeds about 2."""
        if self.variance != "per_example":
            return
        unit = self.plan.sensitivity_factor * self.plan.noise_multiplier
        feedback = d * unit**2 / self.batch_size
        if feedback > 2:
            warnings.warn(
                f"d·S²σ²/B = {feedback:.3g} > 2 with d = {d} parameters: the "
                "variance estimate of AdaCliP feeds on its own noise and grows "
                "until `h2` stops it. Choose `h2` as the largest variance that "
                "you expect, raise the batch size, or train fewer parameters.",
                stacklevel=3,
            )

    def clip_norm(self) -> float:
        """1: the clip happens in units of b."""
        return 1.0

    def geometry(self) -> Geometry:
        """Centre m, scale 1/b."""
        s = [ops.sqrt(v) for v in self.slot("variance")]
        # In float64: XLA on a CPU adds up one after the other.
        sums = [ops.sum(ops.cast(part, "float64")) for part in s]
        total = ops.cast(ops.sqrt(sum(sums)), "float32")
        return Geometry(
            scale=[1.0 / (ops.sqrt(part) * total) for part in s],
            centre=self.slot("mean"),
        )

    def extra_estimates(
        self, geometry: Geometry
    ) -> list[Mapping[int, tf.Tensor]]:
        """b, which `rule` needs for the noise's share of the variance."""
        return [{i: 1.0 / s for i, s in enumerate(geometry.scale or [])}]

    def rule(
        self, learning_rate: Any, t: Any, g: Any, b: Any, m: Any, s2: Any
    ) -> Any:
        """θ ← θ - η g̃."""
        unit = self.plan.sensitivity_factor * self.plan.noise_multiplier
        noise = ops.square(b * unit / self.batch_size) * self.row_norm(t)
        factor = self.batch_size if self.variance == "per_example" else 1.0
        v = factor * (ops.square(g - m) - noise)
        v = ops.clip(v, self.h1, self.h2)
        m = self.beta_1 * m + (1 - self.beta_1) * g
        s2 = self.beta_2 * s2 + (1 - self.beta_2) * v
        return learning_rate * g, (m, s2)
