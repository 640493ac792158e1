"""Train Keras 3 models with differential privacy and adaptive optimizers."""

from tf_dpadaptive import noise, optimizers
from tf_dpadaptive.plan import PrivacyPlan
from tf_dpadaptive.training import callbacks, checkpoint
from tf_dpadaptive.training.budget import BudgetExhausted
from tf_dpadaptive.training.privatize import DPModel, DPSequential, privatize
from tf_dpadaptive.version import __version__

__all__ = [
    "BudgetExhausted",
    "DPModel",
    "DPSequential",
    "PrivacyPlan",
    "__version__",
    "callbacks",
    "checkpoint",
    "noise",
    "optimizers",
    "privatize",
]
