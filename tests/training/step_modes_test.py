"""Eager, graph, XLA, several steps an execution: one and the same update."""

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

import tf_dpadaptive as dpa
from tests.training import build

X, Y = build.data(32)
MODES = {
    "eager": {"run_eagerly": True},
    "graph": {"jit_compile": False},
    "steps_per_execution": {"jit_compile": False, "steps_per_execution": 3},
    "xla": {"jit_compile": True},
    "xla, steps_per_execution": {"jit_compile": True, "steps_per_execution": 3},
}
XLA = pytest.mark.xla


def train(clipping: str = "auto", by_hand: bool = False, **mode: Any) -> Any:
    """Four updates on Poisson batches; returns weights and shown numbers."""
    keras.utils.set_random_seed(4)
    plan = build.plan(1.0, num_steps=4)
    model = dpa.privatize(build.mlp(), clipping=clipping)
    # Regularized, so that every part of the update takes part.
    model.get_layer("head").kernel.regularizer = keras.regularizers.L2(0.1)
    model.compile(
        dpa.optimizers.DPAdam(0.05, build.CLIP, plan, seed=1),
        loss=build.labels_loss(),
        metrics=["accuracy"],
        **mode,
    )
    batches = plan.batches(X, Y, np.linspace(0, 2, 32), seed=5)
    if by_hand:
        for batch in batches:
            model.train_on_batch(batch)
        return build.flat(model), None, model
    history = model.fit(batches, verbose=0).history
    return build.flat(model), history, model


class ModesTest:
    @pytest.fixture(scope="class", autouse=True)
    @staticmethod
    def noise() -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            build.replay_noise(patch)
            yield

    @pytest.fixture(scope="class")
    @staticmethod
    def expected() -> Any:
        return train("sequential", run_eagerly=True)

    def test_replayed_noise_moves_the_weights(self, expected: Any):
        # Otherwise the comparison below would say little.
        assert np.abs(expected[0]).max() > 0.1
        assert expected[2].optimizer.noise_step == 4

    @pytest.mark.parametrize("clipping", ["auto", "vectorized"])
    @pytest.mark.parametrize(
        "mode",
        [
            "eager",
            "graph",
            "steps_per_execution",
            pytest.param("xla", marks=XLA),
            pytest.param("xla, steps_per_execution", marks=XLA),
        ],
    )
    def test_modes_agree(self, expected: Any, mode: str, clipping: str):
        weights, history, model = train(clipping, **MODES[mode])
        # Adam divides by √v̂: 1e-6 of a gradient is 1e-4 of a step.
        np.testing.assert_allclose(weights, expected[0], rtol=1e-3, atol=1e-4)
        for name in ("loss", "accuracy"):
            np.testing.assert_allclose(
                history[name], expected[1][name], rtol=1e-4
            )
        assert model.optimizer.noise_step == model.ledger.updates == 4

    @pytest.mark.parametrize(
        "mode", ["eager", "graph", pytest.param("xla", marks=XLA)]
    )
    def test_train_on_batch_agrees_with_fit(self, expected: Any, mode: str):
        weights, _, model = train(by_hand=True, **MODES[mode])
        np.testing.assert_allclose(weights, expected[0], rtol=1e-3, atol=1e-4)
        assert model.ledger.updates == 4
        assert not model.ledger.verified

    @pytest.mark.xla
    def test_sequential_engine_agrees_under_xla(self, expected: Any):
        weights, _, _ = train("sequential", jit_compile=True)
        np.testing.assert_allclose(weights, expected[0], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    "mode",
    ["graph", "steps_per_execution", pytest.param("xla", marks=XLA)],
)
def test_more_passes_do_not_trace_again(mode: str, monkeypatch: Any):
    plan = build.plan(1.0)
    model = dpa.privatize(build.mlp())
    model.compile(
        dpa.optimizers.DPAdam(0.05, build.CLIP, plan, seed=1),
        loss=build.labels_loss(),
        **MODES[mode],
    )
    model.fit(plan.batches(X, Y), verbose=0)

    def trace(*_: Any) -> None:
        raise AssertionError("traced again")

    monkeypatch.setattr("tf_dpadaptive.training.model.private_step", trace)
    model.fit(plan.batches(X, Y), epochs=2, verbose=0)
    assert model.ledger.updates == 12


@pytest.mark.parametrize("mode", ["graph", pytest.param("xla", marks=XLA)])
def test_sequences_of_other_lengths_are_taken(mode: str):
    model = dpa.privatize(
        keras.Sequential(
            [
                keras.Input((None,), dtype="int32"),
                layers.Embedding(6, 3),
                layers.GlobalAveragePooling1D(),
                layers.Dense(3),
            ]
        )
    )
    model.compile(build.sgd(), build.labels_loss(), **MODES[mode])
    tokens = np.random.default_rng(0).integers(0, 6, (8, 5)).astype(np.int32)
    for length in (5, 3, 5, 4):
        model(tokens[:, :length])
        expected = build.clipped_mean(
            build.alone(model, tokens[:, :length], Y[:8])
        )
        update = build.taken(
            model,
            lambda length=length: model.train_on_batch(
                tokens[:, :length], Y[:8]
            ),
        )
        np.testing.assert_allclose(update, expected, rtol=1e-5, atol=1e-6)
