"""DP optimizers: Keras optimizers that only ever see privatized gradients."""

from tf_dpadaptive.optimizers.adaclip import AdaCliP
from tf_dpadaptive.optimizers.base import DPOptimizer
from tf_dpadaptive.optimizers.bias_corrected import (
    DPAdagradBiasCorrected,
    DPAdamBiasCorrected,
)
from tf_dpadaptive.optimizers.delayed import DPAdagradDelayed, DPRMSpropDelayed
from tf_dpadaptive.optimizers.dp_adagrad import DPAdagrad
from tf_dpadaptive.optimizers.dp_adam import DPAdam, DPAdamW
from tf_dpadaptive.optimizers.dp_post_processing import DPPostProcessing
from tf_dpadaptive.optimizers.dp_sgd import DPSGD
from tf_dpadaptive.optimizers.independent_moments import (
    DPAdagradIndependentMoments,
    DPAdamIndependentMoments,
)
from tf_dpadaptive.optimizers.joint_moments import (
    DPAdagradJointMoments,
    DPAdamJointMoments,
)
from tf_dpadaptive.optimizers.micro_adam import DPMicroAdam
from tf_dpadaptive.optimizers.non_private import NonPrivatePreconditionerAdam
from tf_dpadaptive.optimizers.recommend import recommend
from tf_dpadaptive.optimizers.scale_then_privatize import (
    DPAdagradScaleThenPrivatize,
    DPAdamScaleThenPrivatize,
)
from tf_dpadaptive.optimizers.side_information import DPAdamSideInformation

__all__ = [
    "DPSGD",
    "AdaCliP",
    "DPAdagrad",
    "DPAdagradBiasCorrected",
    "DPAdagradDelayed",
    "DPAdagradIndependentMoments",
    "DPAdagradJointMoments",
    "DPAdagradScaleThenPrivatize",
    "DPAdam",
    "DPAdamBiasCorrected",
    "DPAdamIndependentMoments",
    "DPAdamJointMoments",
    "DPAdamScaleThenPrivatize",
    "DPAdamSideInformation",
    "DPAdamW",
    "DPMicroAdam",
    "DPOptimizer",
    "DPPostProcessing",
    "DPRMSpropDelayed",
    "NonPrivatePreconditionerAdam",
    "recommend",
]
