"""Values with which each optimizer trains a network of some 30,000 weights.

Learning rates are the best of the search in `benchmarks/methods_table.py` (its
grid has three values a decade or two), noise and clip norms those of MNIST at
ε = 3. A start for a search of your own, not the end of one.
"""

from typing import Any

import ml_collections

from tf_dpadaptive.experiments import sections

_STABLE = {"l2_norm_clip": 1.0, "epsilon": 1e-3}
_DELAYED = {**_STABLE, "plain_steps": 20, "adaptive_steps": 20}

#: Of optimizers that are not named here.
_VALUES = {"learning_rate": 0.005, "l2_norm_clip": 0.1}

_VALUES_OF: dict[str, dict[str, Any]] = {
    "AdaCliP": {"learning_rate": 3.0, "l2_norm_clip": 1.0, "h2": 1.5e-4},
    "DPAdagrad": {"learning_rate": 0.03, "l2_norm_clip": 1.0},
    "DPAdagradBiasCorrected": {**_STABLE, "learning_rate": 0.03},
    "DPAdagradDelayed": {**_DELAYED, "learning_rate": 3.0},
    "DPAdagradIndependentMoments": {**_STABLE, "learning_rate": 0.003},
    "DPAdagradJointMoments": {**_STABLE, "learning_rate": 0.003},
    # The clip norm of scaled gradients, whose entries are near 1: √m / 2.
    "DPAdagradScaleThenPrivatize": {
        "learning_rate": 0.01,
        "l2_norm_clip": 10.0,
        "scale_epsilon": 1e-2,
    },
    "DPAdamBiasCorrected": {**_STABLE, "learning_rate": 0.003},
    "DPAdamIndependentMoments": {**_STABLE, "learning_rate": 0.003},
    "DPAdamJointMoments": {**_STABLE, "learning_rate": 0.01},
    "DPAdamScaleThenPrivatize": {
        "learning_rate": 0.01,
        "l2_norm_clip": 80.0,
        "scale_epsilon": 1e-3,
    },
    "DPAdamSideInformation": {**_STABLE, "learning_rate": 0.03},
    "DPMicroAdam": {"learning_rate": 0.01, "l2_norm_clip": 1.0},
    "DPRMSpropDelayed": {**_DELAYED, "learning_rate": 3.0},
    "DPSGD": {"learning_rate": 3.0, "l2_norm_clip": 0.1, "momentum": 0.9},
    "NonPrivatePreconditionerAdam": {
        "learning_rate": 0.001,
        "l2_norm_clip": 1.0,
    },
}


def optimizer(name: str, **values: Any) -> ml_collections.ConfigDict:
    """Section `optimizer` with values to begin with.

    Args:
        name: See `sections.optimizer`.
        **values: Values to take instead.
    """
    given = {**_VALUES_OF.get(name, _VALUES), **values}
    return sections.optimizer(name, **given)
