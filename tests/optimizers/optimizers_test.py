"""Every optimizer keeps the contract; one class each."""

from typing import Any

import keras
import numpy as np
import pytest

from tests.optimizers.contract import CLIP, Contract, plan_of
from tests.reference import (
    adaclip,
    bias_corrected,
    delayed,
    independent_moments,
    joint_moments,
    micro_adam,
    post_processing,
    scale_then_privatize,
    side_information,
)
from tf_dpadaptive import optimizers as dpa


class _Contract(Contract):
    kind: Any = None
    transcription: Any = None
    own: dict[str, Any] = {}
    clip = CLIP

    def make(self, plan: Any, **arguments: Any) -> Any:
        given = {"l2_norm_clip": self.clip, "seed": 1, **self.own, **arguments}
        return self.kind(0.1, plan=plan, **given)

    def reference(self, shapes: Any, **arguments: Any) -> Any:
        own = {k: v for k, v in self.own.items() if k != "public_batches"}
        return self.transcription(shapes, **own, **arguments)


class DPSGDTest(_Contract):
    kind, transcription = dpa.DPSGD, post_processing.SGD


class DPSGDMomentumTest(_Contract):
    kind, transcription = dpa.DPSGD, post_processing.SGD
    own = {"momentum": 0.9}


class DPSGDNesterovTest(_Contract):
    kind, transcription = dpa.DPSGD, post_processing.SGD
    own = {"momentum": 0.9, "nesterov": True}


class DPAdamTest(_Contract):
    kind, transcription = dpa.DPAdam, post_processing.Adam


class DPAdamWTest(_Contract):
    kind, transcription = dpa.DPAdamW, post_processing.AdamW


class DPAdagradTest(_Contract):
    kind, transcription = dpa.DPAdagrad, post_processing.Adagrad
    own = {"initial_accumulator_value": 0.1}


class DPAdamBiasCorrectedTest(_Contract):
    kind, transcription = (
        dpa.DPAdamBiasCorrected,
        bias_corrected.AdamBiasCorrected,
    )
    own = {"floor": 1e-3}


class DPAdagradBiasCorrectedTest(_Contract):
    kind, transcription = (
        dpa.DPAdagradBiasCorrected,
        bias_corrected.AdagradBiasCorrected,
    )
    own = {"floor": 1e-3}


class DPAdamIndependentMomentsTest(_Contract):
    kind = dpa.DPAdamIndependentMoments
    transcription = independent_moments.AdamIndependentMoments
    own = {"epsilon": 1e-3}


class DPAdagradIndependentMomentsTightTest(_Contract):
    kind = dpa.DPAdagradIndependentMoments
    transcription = independent_moments.AdagradIndependentMoments
    own = {"sensitivity": "tight", "epsilon": 1e-2}

    @pytest.mark.parametrize("resume_at", [None, 6])
    @pytest.mark.parametrize("adjacency", ["zero_out"])
    def test_follows_the_numpy_reference(
        self, resume_at: Any, adjacency: str
    ) -> None:
        # Under sampled replace-one the package doubles the zero-out constant
        # (amplification measures from the absent example).
        super().test_follows_the_numpy_reference(resume_at, adjacency)


class DPAdamJointMomentsTest(_Contract):
    kind = dpa.DPAdamJointMoments
    transcription = joint_moments.AdamJointMoments
    own = {"epsilon": 1e-3}

    @pytest.mark.parametrize("resume_at", [None, 6])
    @pytest.mark.parametrize("adjacency", ["zero_out"])
    def test_follows_the_numpy_reference(
        self, resume_at: Any, adjacency: str
    ) -> None:
        super().test_follows_the_numpy_reference(resume_at, adjacency)


class DPAdagradJointMomentsTest(DPAdamJointMomentsTest):
    kind = dpa.DPAdagradJointMoments
    transcription = joint_moments.AdagradJointMoments
    own = {"scale": 0.4, "epsilon": 1e-2}


class DPAdamScaleThenPrivatizeTest(_Contract):
    kind = dpa.DPAdamScaleThenPrivatize
    transcription = scale_then_privatize.AdamScaleThenPrivatize
    own = {"scale_epsilon": 1e-2}
    clip = 4.0


class DPAdagradScaleThenPrivatizeTest(_Contract):
    kind = dpa.DPAdagradScaleThenPrivatize
    transcription = scale_then_privatize.AdagradScaleThenPrivatize
    own = {"scale_epsilon": 1e-2}
    clip = 0.5


class DPRMSpropDelayedTest(_Contract):
    kind, transcription = dpa.DPRMSpropDelayed, delayed.RMSpropDelayed
    own = {
        "plain_steps": 3,
        "adaptive_steps": 2,
        "adaptive_learning_rate": 0.05,
        "adaptive_l2_norm_clip": 3.0,
        "epsilon": 1e-3,
    }


class DPAdagradDelayedTest(_Contract):
    kind, transcription = dpa.DPAdagradDelayed, delayed.AdagradDelayed
    own = {"plain_steps": 1, "adaptive_steps": 3, "epsilon": 1e-2}


class DPAdamSideInformationTest(_Contract):
    kind = dpa.DPAdamSideInformation
    transcription = side_information.AdamSideInformation
    own = {"epsilon": 1e-3}
    public = True

    def fitted(self, **compile_arguments: Any) -> Any:
        self.own = {**self.own, "public_batches": _public_batches()}
        return super().fitted(**compile_arguments)


class DPAdamSideInformationScaledTest(DPAdamSideInformationTest):
    own = {
        "epsilon": 1e-3,
        "scale_then_privatize": True,
        "scale_epsilon": 1e-2,
    }


class NonPrivatePreconditionerAdamTest(_Contract):
    kind = dpa.NonPrivatePreconditionerAdam
    transcription = side_information.NonPrivatePreconditionerAdam
    own = {"epsilon": 1e-3}
    private = False

    def test_state_never_holds_raw_data(self) -> None:
        # The baseline must fail what every private optimizer passes.
        assert self.raw_data_distance() > 1e-3


class NonPrivatePreconditionerAdamScaledTest(NonPrivatePreconditionerAdamTest):
    own = {
        "epsilon": 1e-3,
        "scale_then_privatize": True,
        "scale_epsilon": 1e-2,
    }


@pytest.mark.filterwarnings("ignore:.*feeds on its own noise")
class AdaCliPTest(_Contract):
    kind, transcription = dpa.AdaCliP, adaclip.AdaCliP
    own = {"h2": 1.0}


class DPMicroAdamTest(_Contract):
    kind, transcription = dpa.DPMicroAdam, micro_adam.MicroAdam
    own = {"density": 0.3, "window": 4}

    def reference(self, shapes: Any, **arguments: Any) -> Any:
        return super().reference(shapes, dtype="float32", **arguments)


class DPMicroAdamFullErrorTest(_Contract):
    kind, transcription = dpa.DPMicroAdam, micro_adam.MicroAdam
    own = {"density": 0.3, "window": 3, "error_feedback": "full"}


class DPMicroAdamNoErrorTest(_Contract):
    kind, transcription = dpa.DPMicroAdam, micro_adam.MicroAdam
    own = {"density": 0.5, "window": 3, "error_feedback": "none"}


class _KeepsRawData(dpa.DPSGD):
    """A planted optimizer that keeps the raw mean in a slot."""

    slot_names: Any = ("raw",)

    def releases(self, mean: Any) -> Any:
        for i, value in mean.items():
            self._slots[i][0].assign(value)
        return super().releases(mean)

    def rule(self, learning_rate: Any, t: Any, g: Any, raw: Any) -> Any:
        return learning_rate * g, (raw,)


class _KeepsRawDataContract(_Contract):
    kind = _KeepsRawData


def test_an_optimizer_that_keeps_raw_data_is_found_out() -> None:
    assert _KeepsRawDataContract().raw_data_distance() > 1e-3


def _public_batches() -> Any:
    generator = np.random.default_rng(3)
    return [
        (
            generator.standard_normal((4, 4)).astype("float32"),
            generator.integers(0, 3, 4),
        )
        for _ in range(2)
    ]


def test_tiny_clip_norms_are_refused() -> None:
    # float32 flushes squares below 1e-38: a million entries of 1e-19 have a
    # computed norm of 0, and would pass a clip of 1e-17 unclipped.
    with pytest.raises(ValueError, match="l2_norm_clip"):
        dpa.DPSGD(0.1, 1e-13, plan_of())
    with pytest.raises(ValueError, match="adaptive_l2_norm_clip"):
        dpa.DPRMSpropDelayed(0.1, 1.0, plan_of(), adaptive_l2_norm_clip=1e-13)


def test_adaclip_warns_where_its_variance_feeds_on_noise() -> None:
    optimizer = dpa.AdaCliP(0.1, 1.0, plan_of(noise_multiplier=3.0), h2=1.0)
    with pytest.warns(UserWarning, match="feeds on its own noise"):
        optimizer.build([keras.Variable([0.0] * 100)])


def test_scale_then_privatize_warns_of_hopeless_settings() -> None:
    plan = plan_of()
    kind = dpa.DPAdamScaleThenPrivatize
    with pytest.warns(UserWarning, match="1e-6"):
        kind(0.1, 0.5, plan, scale_epsilon=1e-6)
    with pytest.warns(UserWarning, match="without bound"):
        kind(0.1, 50.0, plan).build([keras.Variable([0.0])])
    with pytest.warns(UserWarning, match="thousands"):
        kind(0.1, 9.0, plan, scale_epsilon=1e-6).build([keras.Variable([0.0])])
    with pytest.warns(UserWarning, match="exponentially"):
        dpa.DPAdagradScaleThenPrivatize(0.1, 9.0, plan).build(
            [keras.Variable([0.0])]
        )


@pytest.mark.parametrize(
    "kind", [dpa.DPAdamBiasCorrected, dpa.DPAdagradBiasCorrected]
)
def test_bias_correction_does_not_divide_by_zero(kind):
    with pytest.raises(ValueError, match="must not both be 0"):
        kind(0.1, 1.0, plan_of(), epsilon=0.0)
    kind(0.1, 1.0, plan_of(), epsilon=0.0, floor=1e-8)


@pytest.mark.parametrize(
    "kind",
    [
        dpa.DPAdamIndependentMoments,
        dpa.DPAdagradIndependentMoments,
        dpa.DPAdamJointMoments,
        dpa.DPAdagradJointMoments,
    ],
)
def test_a_second_moment_that_can_be_negative_needs_an_epsilon(kind):
    with pytest.raises(ValueError, match="epsilon"):
        kind(0.1, 1.0, plan_of(), epsilon=0.0)
