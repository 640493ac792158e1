"""The compiled second half of a step is the plain one."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_dpadaptive as dpa
from tests.training import build
from tf_dpadaptive.training import finish

X, Y = build.data(32)
OPTIMIZERS = dpa.optimizers


class OddSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """What XLA can't compile."""

    def __call__(self, step: Any) -> Any:
        return tf.numpy_function(lambda _: np.float32(0.1), [step], tf.float32)

    def get_config(self) -> dict[str, Any]:
        return {}


def train(make: Any, noise: Any = None, **mode: Any) -> Any:
    keras.utils.set_random_seed(4)
    plan = build.plan(
        1.0,
        num_steps=4,
        sampling="in_order",
        noise=noise or dpa.noise.Independent(),
    )
    model = dpa.privatize(build.mlp())
    model.get_layer("head").kernel.regularizer = keras.regularizers.L2(0.1)
    model.get_layer("head").kernel.constraint = keras.constraints.MaxNorm(2.0)
    mode = {"jit_compile": False, **mode}
    model.compile(make(plan), loss=build.labels_loss(), **mode)
    with pytest.warns(UserWarning, match="seed"):
        batches = plan.batches(X, Y, seed=5)
    model.fit(batches, verbose=0)
    return model


@pytest.fixture
def compiles(monkeypatch: Any) -> list[bool]:
    """Compiles small models too; lists what was decided."""
    monkeypatch.setattr(finish, "_COMPILED_FROM", 0)
    pays, seen = finish._compiling_pays, []

    def spy(model: Any) -> bool:
        seen.append(pays(model))
        return seen[-1]

    monkeypatch.setattr(finish, "_compiling_pays", spy)
    return seen


def adam(plan: Any, rate: Any = 0.05, kind: str = "DPAdam", **fields: Any):
    return getattr(OPTIMIZERS, kind)(rate, build.CLIP, plan, seed=1, **fields)


CASES = {
    "DPAdam": adam,
    "weight decay, average": lambda plan: adam(
        plan, weight_decay=0.1, use_ema=True, ema_overwrite_frequency=2
    ),
    "schedule": lambda plan: adam(
        plan, keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)
    ),
    "post-processing": lambda plan: OPTIMIZERS.DPPostProcessing(
        keras.optimizers.RMSprop(0.05), build.CLIP, plan, seed=1
    ),
    **{
        kind: lambda plan, kind=kind: adam(plan, kind=kind)
        for kind in (
            "DPSGD",
            "DPAdamScaleThenPrivatize",
            "DPAdamJointMoments",
            "DPAdamIndependentMoments",
            "DPAdagradDelayed",
            "DPAdamBiasCorrected",
        )
    },
    "AdaCliP": lambda plan: adam(plan, kind="AdaCliP", h2=1.0),
}


@pytest.mark.xla
@pytest.mark.filterwarnings("ignore")
class CompiledTest:
    @pytest.mark.parametrize("case", CASES)
    def test_is_the_plain_update(self, case, compiles, monkeypatch):
        build.replay_noise(monkeypatch)
        got = train(CASES[case])
        assert compiles == [True]
        monkeypatch.setattr(finish, "_COMPILED_FROM", 10**9)
        want = train(CASES[case])
        assert compiles == [True, False]
        assert got.optimizer.noise_step == want.optimizer.noise_step == 4
        assert got.ledger.updates == 4
        np.testing.assert_allclose(
            build.flat(got), build.flat(want), rtol=1e-3, atol=1e-4
        )
        for one, other in zip(
            got.optimizer.variables, want.optimizer.variables, strict=True
        ):
            np.testing.assert_allclose(one, other, rtol=2e-3, atol=1e-4)

    @pytest.mark.parametrize(
        "noise", [dpa.noise.BandedMF(2), dpa.noise.BandedInverse(2)]
    )
    def test_with_correlated_noise(self, noise, compiles, monkeypatch):
        got = train(adam, noise)
        monkeypatch.setattr(finish, "_COMPILED_FROM", 10**9)
        want = train(adam, noise)
        assert compiles == [True, False]
        np.testing.assert_allclose(
            build.flat(got), build.flat(want), rtol=1e-3, atol=1e-4
        )

    def test_with_several_steps_an_execution(self, compiles, monkeypatch):
        build.replay_noise(monkeypatch)
        got, want = train(adam, steps_per_execution=3), train(adam)
        assert compiles
        assert all(compiles)
        assert got.optimizer.noise_step == got.ledger.updates == 4
        np.testing.assert_allclose(
            build.flat(got), build.flat(want), rtol=1e-4, atol=1e-5
        )

    def test_noise_is_fresh_in_every_step(self, compiles):
        # A clip so small that each update is the noise alone.
        plan = build.plan(1.0)
        model = dpa.privatize(build.mlp())
        model.compile(
            OPTIMIZERS.DPSGD(1.0, 1e-6, plan),
            loss=build.labels_loss(),
            jit_compile=False,
        )
        weights = [build.flat(model)]
        for _ in range(3):
            model.train_on_batch(X[:8], Y[:8])
            weights.append(build.flat(model))
        noises = np.diff(weights, axis=0) / (1e-6 / 8)
        assert compiles == [True]
        assert 0.5 < noises.std() < 2
        assert np.abs(np.corrcoef(noises) - np.eye(3)).max() < 0.6

    @pytest.mark.parametrize(
        ("make", "mode"),
        [
            (adam, {"run_eagerly": True}),
            (adam, {"jit_compile": True}),
            (lambda plan: adam(plan, OddSchedule()), {}),
            (lambda plan: adam(plan, lambda: 0.1), {}),
            (lambda plan: adam(plan, kind="DPMicroAdam"), {}),
        ],
        ids=["eager", "XLA", "schedule", "function", "MicroAdam"],
    )
    def test_is_left_alone_where_it_may_fail(self, make, mode, compiles):
        train(make, **mode)
        assert compiles
        assert not any(compiles)

    def test_only_where_it_pays(self, monkeypatch):
        pays, seen = finish._compiling_pays, []
        monkeypatch.setattr(
            finish,
            "_compiling_pays",
            lambda model: seen.append(pays(model)) or seen[-1],
        )
        train(adam)
        assert seen == [False]
