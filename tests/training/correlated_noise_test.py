"""Correlated noise is bound to one unbroken run, of the planned length."""

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import tf_dpadaptive as dpa
from tests.training import build
from tf_dpadaptive import noise

X, Y = build.data(32)
STEPS = 9
KEEPING = [
    noise.BandedMF(3),
    noise.BLT(2),
    noise.BandedInverse(3, regenerate=False),
    noise.TreeAggregation(regenerate=False),
]
REGENERATING = [noise.BandedInverse(2), noise.TreeAggregation()]


def plan_of(mechanism: Any) -> dpa.PrivacyPlan:
    return dpa.PrivacyPlan(
        1.0,
        8,
        32,
        num_steps=STEPS,
        sampling="shuffled",
        noise=mechanism,
        delta=1e-5,
    )


def model_of(mechanism: Any, seed: int | None = None) -> Any:
    optimizer = dpa.optimizers.DPSGD(
        0.1, build.CLIP, plan_of(mechanism), seed=seed
    )
    return build.compiled(optimizer=optimizer)


def fit(model: Any, updates: int, seed: int | None = None) -> None:
    batches = model.optimizer.plan.batches(X, Y, steps=updates, seed=seed)
    model.fit(batches, verbose=0)


@pytest.mark.parametrize("mechanism", KEEPING + REGENERATING, ids=repr)
def test_a_seeded_run_resumes_bit_for_bit(mechanism: Any, tmp_path: Path):
    keras.utils.set_random_seed(1)
    unbroken = model_of(mechanism, seed=3)
    start = build.values(unbroken)
    fit(unbroken, 5, seed=5)
    fit(unbroken, 4, seed=5)
    first = model_of(mechanism, seed=3)
    build.assign(first, start)
    fit(first, 5, seed=5)
    dpa.checkpoint.save(first, tmp_path / "run")
    second = model_of(mechanism, seed=3)
    dpa.checkpoint.restore(second, tmp_path / "run")
    fit(second, 4, seed=5)
    np.testing.assert_array_equal(build.flat(second), build.flat(unbroken))
    # One run of nine updates, not one of five and one of four.
    (run,) = second.ledger.runs
    assert run.updates == STEPS
    assert second.epsilon() == plan_of(mechanism).epsilon()


@pytest.mark.parametrize("mechanism", KEEPING[:2] + REGENERATING[:1], ids=repr)
def test_two_runs_from_one_checkpoint_draw_different_noise(
    mechanism: Any, tmp_path: Path
):
    first = model_of(mechanism)
    fit(first, 4)
    dpa.checkpoint.save(first, tmp_path / "run")
    updates = []
    for _ in range(2):
        fork = model_of(mechanism)
        dpa.checkpoint.restore(fork, tmp_path / "run")
        updates.append(build.taken(fork, lambda f=fork: fit(f, 1)))
    updates.append(build.taken(first, lambda: fit(first, 1)))
    for one, other in ((0, 1), (0, 2), (1, 2)):
        # Noise of 0.1·ζ/8 each, in every entry.
        assert np.all(updates[one] != updates[other])


@pytest.mark.parametrize("mechanism", KEEPING[:2] + REGENERATING[:1], ids=repr)
def test_longer_than_planned_raises(mechanism: Any):
    model = model_of(mechanism)
    before = build.state(model)
    with pytest.raises(dpa.BudgetExhausted):
        fit(model, STEPS + 1)
    assert build.unchanged(model, before)
    fit(model, STEPS)
    before = build.state(model)
    with pytest.raises(dpa.BudgetExhausted):
        model.train_on_batch(X[:8], Y[:8])
    with pytest.raises(dpa.BudgetExhausted):
        fit(model, 1)
    assert build.unchanged(model, before)


@pytest.mark.parametrize("mechanism", KEEPING[:1] + REGENERATING[:1], ids=repr)
def test_a_released_file_does_not_go_on(mechanism: Any, tmp_path: Path):
    model = model_of(mechanism)
    fit(model, 3)
    model.save(tmp_path / "m.keras")
    loaded = dpa.privatize(keras.saving.load_model(tmp_path / "m.keras"))
    loaded.compile(loaded.optimizer, build.labels_loss(), run_eagerly=True)
    before = build.state(loaded)
    with pytest.raises(ValueError, match="correlated noise can't go on"):
        fit(loaded, 1)
    assert build.unchanged(loaded, before)
    # A new optimizer begins a run of its own, which is charged as one.
    loaded.compile(
        dpa.optimizers.DPSGD(0.1, build.CLIP, plan_of(mechanism)),
        build.labels_loss(),
        run_eagerly=True,
    )
    fit(loaded, 3)
    assert [run.updates for run in loaded.ledger.runs] == [3, 3]
    assert loaded.epsilon() > model.epsilon()
