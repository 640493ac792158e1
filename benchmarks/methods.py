"""The methods of the table: how each is tested, and how it is trained."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import keras

import tf_dpadaptive as dpa
from tests.optimizers import contract as battery
from tests.optimizers import dp_post_processing_test, optimizers_test
from tests.reference import post_processing

#: Learning rates that are tried, by the family of a method.
GRID: Mapping[str, tuple[float, ...]] = {
    "sgd": (0.3, 1.0, 3.0, 10.0),
    "adam": (1e-3, 3e-3, 1e-2, 3e-2),
    "adagrad": (3e-3, 1e-2, 3e-2, 1e-1),
}


class Method(NamedTuple):
    """How a method is tested, and how it is trained.

    Attributes:
        contract: Its contract test.
        grid: Key of GRID.
        arguments: Beside the learning rate; functions are asked with m, the
            number of parameters.
    """

    contract: Any
    grid: str
    arguments: Mapping[str, Any]


_CLIP = {"l2_norm_clip": 1.0}
_SCALED = {"l2_norm_clip": lambda m: m**0.5 / 2, "scale_epsilon": 1e-3}
_DELAYED = {**_CLIP, "plain_steps": 20, "adaptive_steps": 20, "epsilon": 1e-3}
_STABLE = {**_CLIP, "epsilon": 1e-3}
_METHODS: Mapping[str, Method] = {
    name: Method(getattr(optimizers_test, name + test), grid, arguments)
    for name, test, grid, arguments in (
        ("DPSGD", "Test", "sgd", _CLIP),
        ("DPAdam", "Test", "adam", _CLIP),
        ("DPAdamW", "Test", "adam", _CLIP),
        ("DPAdagrad", "Test", "adagrad", _CLIP),
        ("DPAdamBiasCorrected", "Test", "adam", _STABLE),
        ("DPAdagradBiasCorrected", "Test", "adagrad", _STABLE),
        ("DPAdamScaleThenPrivatize", "Test", "adam", _SCALED),
        (
            "DPAdagradScaleThenPrivatize",
            "Test",
            "adagrad",
            {"l2_norm_clip": 10.0, "scale_epsilon": 1e-2},
        ),
        ("DPAdamIndependentMoments", "Test", "adam", _STABLE),
        ("DPAdagradIndependentMoments", "TightTest", "adagrad", _STABLE),
        ("DPAdamJointMoments", "Test", "adam", _STABLE),
        ("DPAdagradJointMoments", "Test", "adagrad", _STABLE),
        ("DPRMSpropDelayed", "Test", "sgd", _DELAYED),
        ("DPAdagradDelayed", "Test", "sgd", _DELAYED),
        ("DPAdamSideInformation", "Test", "adam", _STABLE),
        ("AdaCliP", "Test", "sgd", {**_CLIP, "h2": lambda m: 4 / m}),
        ("DPMicroAdam", "Test", "adam", _CLIP),
        ("NonPrivatePreconditionerAdam", "Test", "adam", _CLIP),
    )
}


class _PostProcessing(dp_post_processing_test.DPPostProcessingTest):
    """With an inner optimizer that has a transcription."""

    def make(self, plan: dpa.PrivacyPlan, **arguments: Any) -> Any:
        inner = keras.optimizers.SGD(0.1, momentum=0.9)
        given = {"l2_norm_clip": battery.CLIP, "seed": 1, **arguments}
        return dpa.optimizers.DPPostProcessing(inner, plan=plan, **given)

    def reference(self, shapes: Any, **arguments: Any) -> Any:
        return post_processing.SGD(shapes, momentum=0.9, **arguments)


ALL: Mapping[str, Method] = {
    **_METHODS,
    "DPPostProcessing": Method(_PostProcessing, "adam", _CLIP),
}


def make(
    name: str,
    rate: float,
    plan: dpa.PrivacyPlan,
    size: int,
    arguments: Mapping[str, Any],
) -> Any:
    """The optimizer, with arguments for a model of `size` parameters."""
    given: dict[str, Any] = {
        key: value(size) if callable(value) else value
        for key, value in arguments.items()
    }
    if name == "DPPostProcessing":
        return dpa.optimizers.DPPostProcessing(
            keras.optimizers.Adam(rate), plan=plan, **given
        )
    return getattr(dpa.optimizers, name)(rate, plan=plan, **given)
