r"""Joint moment estimation (JME): mean and square as one record.

    p = Π_ζ(ḡ)      record (p, √λ p²) of joint sensitivity J(λ)
    g1 = p + J (C⁻¹z1)_t          g2 = p² + (J/√λ) (C⁻¹z2)_t

    J²(λ) = D² + λ M(D),  M(r) = r²(2R-r)²        for r ≤ 2R/3
                                 2r²(R²-r²/4)     else
    J²(λ) = 2R² + 2λR⁴ + 1/(2λ)                   for D² > 2R² + 1/λ

R = ζ; D = ζ/B under zero-out. λ is `scale`; default 1/(2ζ²).

Reference: Kalinin, Upadhyay, Lampert, "Continual release moment estimation with
differential privacy", 2025, arXiv 2502.06597; discussed in Ganesh et al., arXiv
2507.01129. Departures: one projection serves both parts; under replace-one with
sampled batches J is twice that of zero-out where this is more than J(2ζ/B),
because amplification measures both neighbours from the absent example.
"""

import math
from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from tf_dpadaptive import _validate
from tf_dpadaptive.optimizers.base import DPOptimizer
from tf_dpadaptive.optimizers.seams import Release
from tf_dpadaptive.optimizers.two_moments import (
    TwoMomentsAdagrad,
    TwoMomentsAdam,
    project,
)


def joint_sensitivity(distance: float, radius: float, scale: float) -> float:
    """Returns J(λ), the L2 sensitivity of (p, √λ p²).

    Args:
        distance: D, how far one example moves p.
        radius: R, bound on ||p||.
        scale: λ > 0.
    """
    d, r = min(distance, 2 * radius), radius
    if d**2 > 2 * r**2 + 1 / scale:
        return math.sqrt(2 * r**2 + 2 * scale * r**4 + 1 / (2 * scale))
    if d <= 2 * r / 3:
        square = d**2 * (2 * r - d) ** 2
    else:
        square = 2 * d**2 * (r**2 - d**2 / 4)
    return math.sqrt(d**2 + scale * square)


class _JointMoments(DPOptimizer):
    fixed = (*DPOptimizer.fixed, "scale", "lam", "joint")

    def __init__(
        self, *args: Any, scale: float | None = None, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        if scale is not None:
            _validate.positive(scale=scale)
        self.scale = scale
        zeta, plan = self.l2_norm_clip, self.plan
        self.lam = scale if scale is not None else 1 / (2 * zeta**2)
        distance = zeta / self.batch_size
        factor = plan.sensitivity_factor
        joint = joint_sensitivity(factor * distance, zeta, self.lam)
        if factor > 1 and plan.sampling in ("poisson", "cyclic_poisson"):
            absent = joint_sensitivity(distance, zeta, self.lam)
            joint = max(joint, factor * absent)
        self.joint = joint

    def releases(self, mean: Mapping[int, tf.Tensor]) -> list[Release]:
        """The two parts of one record of joint sensitivity J."""
        p = project(mean, self.l2_norm_clip)
        square = {i: tf.square(v) for i, v in p.items()}
        return [
            Release(p, self.joint),
            Release(square, self.joint / math.sqrt(self.lam)),
        ]


@keras.saving.register_keras_serializable(package="tf_dpadaptive")
class DPAdamJointMoments(_JointMoments, TwoMomentsAdam):
    """Adam whose moments are released as one record.

    Args:
        learning_rate: η.
        l2_norm_clip: ζ.
        plan: The `PrivacyPlan`.
        scale: λ > 0, weight of the square in the record; None is 1/(2ζ²).
        **kwargs: See `DPAdam`.

    Privacy: one Gaussian of multiplier σ a step, on the record.
    """

    hyperparameters = (*TwoMomentsAdam.hyperparameters, "scale")


@keras.saving.register_keras_serializable(package="tf_dpadaptive")
class DPAdagradJointMoments(_JointMoments, TwoMomentsAdagrad):
    """AdaGrad whose moments are released as one record.

    Args:
        learning_rate: η.
        l2_norm_clip: ζ.
        plan: The `PrivacyPlan`.
        scale: λ > 0, weight of the square in the record; None is 1/(2ζ²).
        **kwargs: See `DPAdagrad`.

    Privacy: as `DPAdamJointMoments`.
    """

    hyperparameters = (*TwoMomentsAdagrad.hyperparameters, "scale")
