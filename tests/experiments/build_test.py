"""Tests of what is built from the sections of a config."""

import keras
import numpy as np
import pytest

import tf_dpadaptive as dpa
from tests.experiments import small
from tf_dpadaptive.experiments import build


def plan(num_steps=9):
    return dpa.PrivacyPlan(1.0, 32, num_examples=96, num_steps=num_steps)


def test_plan_is_calibrated_to_epsilon():
    made = build.plan(small.config(privacy={"epsilon": 3.0}), 96)
    assert 2.9 < made.epsilon() <= 3.0
    assert made.num_steps == 3 * 3
    assert made.delta == 1e-3


def test_plan_takes_a_given_noise_multiplier():
    made = build.plan(small.config(privacy={"noise_multiplier": 0.7}), 96)
    assert made.noise_multiplier == 0.7
    assert made.num_steps == 9


@pytest.mark.parametrize(
    "privacy",
    [{"sampling": "poisson"}, {"epsilon": 1.0, "noise_multiplier": 1}],
)
def test_plan_wants_epsilon_or_noise_multiplier(privacy):
    with pytest.raises(ValueError, match="Give one of"):
        build.plan(small.config(privacy=privacy), 96)


def test_noise_is_a_text():
    privacy = {"noise": "BLT(2, epochs=epochs)", "sampling": "shuffled"}
    config = small.config(privacy=privacy | {"noise_multiplier": 1.0})
    made = build.plan(config, 96).noise
    assert made == dpa.noise.BLT(2, epochs=config.train.epochs)


def test_unknown_noise_is_refused():
    config = small.config(privacy={"epsilon": 1.0, "noise": "Pink"})
    with pytest.raises(ValueError, match="Pink"):
        build.plan(config, 96)


def test_only_given_arguments_reach_the_optimizer():
    made = build.optimizer(small.config("DPAdam", beta_2=0.9), plan())
    assert type(made) is dpa.optimizers.DPAdam
    assert made.beta_2 == 0.9
    assert made.weight_decay is None
    assert made.l2_norm_clip == 1.0
    assert float(made.learning_rate) == pytest.approx(0.1)


def test_missing_argument_is_named_by_the_constructor():
    with pytest.raises(TypeError, match="h2"):
        build.optimizer(small.config("AdaCliP"), plan())


def test_post_processing_builds_the_inner_optimizer():
    config = small.config("DPPostProcessing:SGD", momentum=0.5)
    made = build.optimizer(config, plan())
    assert type(made) is dpa.optimizers.DPPostProcessing
    assert type(made.inner_optimizer) is keras.optimizers.SGD
    assert made.inner_optimizer.momentum == 0.5
    assert float(made.learning_rate) == pytest.approx(0.1)


def test_side_information_needs_public_data():
    config = small.config("DPAdamSideInformation")
    with pytest.raises(ValueError, match=r"data\.num_public"):
        build.optimizer(config, plan())
    x = np.zeros((250, 4), np.float32)
    made = build.optimizer(config, plan(), (x, np.zeros(250, int)))
    assert isinstance(made, dpa.optimizers.DPAdamSideInformation)


def test_public_batches_have_one_shape():
    x = np.arange(250)
    batches = build._batches((x, x), "Any")
    assert [len(part) for part, _ in batches] == [100, 100]
    assert [len(part) for part, _ in build._batches((x[:7], x[:7]), "Any")] == [
        7
    ]


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_schedule_falls_to_zero_over_the_plan(schedule):
    rate = build._schedule(schedule, 0.5, 10)
    values = [float(rate(step)) for step in range(11)]
    assert values[0] == pytest.approx(0.5)
    assert values[-1] == pytest.approx(0.0, abs=1e-6)
    assert values == sorted(values, reverse=True)


def test_constant_schedule_is_the_number():
    assert build._schedule("constant", 0.5, 10) == 0.5


def test_unknown_schedule_is_refused():
    with pytest.raises(ValueError, match="'sawtooth'"):
        build._schedule("sawtooth", 0.5, 10)
