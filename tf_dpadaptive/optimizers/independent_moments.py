r"""Independent moment estimation (IME): two releases of one clipped mean.

    g1 = ḡ_t + √2 (S/B) (C⁻¹z1)_t        g2 = (Π_ζ ḡ_t)² + √2 S2 (C⁻¹z2)_t
    S2 = (2B+1) ζ²/B²  (`"paper"`)   or   (2B-1) ζ²/B²  (`"tight"`)

z1, z2 are independent and share C. Rules: see `two_moments`.

Reference: Ganesh, McMahan, Thakurta, "On design principles for private adaptive
optimizers", 2025, arXiv 2507.01129, Algorithm 6. Departures: the mean is
projected to norm ζ before it is squared, so that S2 holds for every batch; the
two √2σ releases are charged as one Gaussian of multiplier σ, not as two
sampled ones. Under replace-one adjacency every sensitivity doubles; where
batches are not sampled, "tight" is 4(B-1) ζ²/B².
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
from tf_dpadaptive.plan import PrivacyPlan


def square_sensitivity(
    l2_norm_clip: float, plan: PrivacyPlan, sensitivity: str
) -> float:
    """Returns S2, how far one example moves (Π_ζ ḡ)².

    Args:
        l2_norm_clip: ζ.
        plan: B, adjacency and sampling are read.
        sensitivity: `"paper"` (any batch) or `"tight"`.

    Raises:
        ValueError: if `"tight"` does not hold for these batches.
    """
    _validate.one_of(("paper", "tight"), sensitivity=sensitivity)
    b = float(plan.expected_batch_size)
    unit = (l2_norm_clip / b) ** 2
    factor = plan.sensitivity_factor
    if sensitivity == "paper":
        return factor * (2 * b + 1) * unit
    sampled = plan.sampling in ("poisson", "cyclic_poisson")
    if b < 1.5 and sampled:
        raise ValueError(
            '`sensitivity="tight"` needs B >= 1.5 where batches can hold more '
            f"than B examples. Received: expected_batch_size={b}, sampling="
            f'{plan.sampling!r}. Use sensitivity="paper".'
        )
    if factor == 2 and not sampled and b >= 3:
        return 4 * (b - 1) * unit
    return factor * (2 * b - 1) * unit


class _IndependentMoments(DPOptimizer):
    fixed = (*DPOptimizer.fixed, "sensitivity", "square_sensitivity")
    hyperparameters = ("sensitivity",)

    def __init__(
        self, *args: Any, sensitivity: str = "paper", **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.sensitivity = sensitivity
        self.square_sensitivity = square_sensitivity(
            self.l2_norm_clip, self.plan, sensitivity
        )

    def releases(self, mean: Mapping[int, tf.Tensor]) -> list[Release]:
        """The clipped mean, and the square of its projection."""
        square = {
            i: tf.square(p) for i, p in project(mean, self.l2_norm_clip).items()
        }
        return [
            Release(mean, math.sqrt(2) * self.mean_sensitivity()),
            Release(square, math.sqrt(2) * self.square_sensitivity),
        ]


@keras.saving.register_keras_serializable(package="tf_dpadaptive")
class DPAdamIndependentMoments(_IndependentMoments, TwoMomentsAdam):
    """Adam with a release of its own for each moment.

    Args:
        learning_rate: η.
        l2_norm_clip: ζ.
        plan: The `PrivacyPlan`.
        sensitivity: `"paper"` or `"tight"`: the constant of the square.
        **kwargs: See `DPAdam`.

    Privacy: two Gaussians of multiplier √2σ on one sample, together one of
        multiplier σ a step.
    """

    hyperparameters = (*TwoMomentsAdam.hyperparameters, "sensitivity")


@keras.saving.register_keras_serializable(package="tf_dpadaptive")
class DPAdagradIndependentMoments(_IndependentMoments, TwoMomentsAdagrad):
    """AdaGrad with a release of its own for the accumulator.

    Args:
        learning_rate: η.
        l2_norm_clip: ζ.
        plan: The `PrivacyPlan`.
        sensitivity: `"paper"` or `"tight"`: the constant of the square.
        **kwargs: See `DPAdagrad`.

    Privacy: as `DPAdamIndependentMoments`.
    """

    hyperparameters = (*TwoMomentsAdagrad.hyperparameters, "sensitivity")
