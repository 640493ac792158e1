"""The order that the accounting assumes is the order that runs.

Example i is unit vector i and its loss is weight i, so that without noise an
update moves exactly the weights of the examples that took part. Recorded are
the steps of every example over three passes, in several calls of `fit`, with a
resume in the middle of the second pass.
"""

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

import tf_dpadaptive as dpa
from tests.training import build
from tf_dpadaptive.accounting import events

N, B, PASS, BANDS = 22, 4, 6, 3
STEPS = 3 * PASS
FIRST = 10  # updates before the resume: no whole pass, no whole cycle
SAMPLINGS = ("in_order", "shuffled", "cyclic_poisson")


class Recorder(keras.callbacks.Callback):
    """Who took part in each update, one row (N,) of booleans an update."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[np.ndarray] = []

    def on_train_begin(self, logs: Any = None) -> None:
        self._before = build.flat(self.model)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        after = build.flat(self.model)
        self.rows.append(np.abs(after - self._before) > 0.1)
        self._before = after


def plan_of(sampling: str, noise_multiplier: float = 0.0) -> dpa.PrivacyPlan:
    return dpa.PrivacyPlan(
        noise_multiplier,
        B,
        N,
        num_steps=STEPS,
        sampling=sampling,
        noise=dpa.noise.BandedMF(BANDS),
        delta=1e-5,
    )


def fresh(sampling: str) -> Any:
    return build.compiled(
        keras.Sequential([keras.Input((N,)), layers.Dense(1, use_bias=False)]),
        dpa.optimizers.DPSGD(float(B), 1.0, plan_of(sampling)),
        loss=lambda y, p: p[:, 0],
        run_eagerly=False,
    )


def record(
    sampling: str, path: Path, *, forget: bool = False
) -> list[np.ndarray]:
    """The steps of each example."""
    x, y = np.eye(N, dtype="float32"), np.zeros(N)
    recorder = Recorder()

    def fit(model: Any, **arguments: Any) -> None:
        batches = model.optimizer.plan.batches(x, y, **arguments)
        model.fit(batches, verbose=0, callbacks=[recorder])

    first = fresh(sampling)
    fit(first)  # a whole pass
    fit(first, steps=FIRST - PASS)
    dpa.checkpoint.save(first, path)
    fit(first, steps=3)  # a branch that is left, and was none of this run
    recorder.rows = recorder.rows[:FIRST]
    second = fresh(sampling)
    dpa.checkpoint.restore(second, path)
    if forget:
        second.optimizer.sampling.order = None
    fit(second, steps=1)
    fit(second, steps=STEPS - FIRST - 1)
    taken = np.array(recorder.rows)
    assert taken.shape == (STEPS, N)
    return [np.flatnonzero(taken[:, i]) for i in range(N)]


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_every_example_keeps_the_steps_that_are_charged(
    sampling: str, tmp_path: Path
):
    steps = record(sampling, tmp_path / "run")
    if sampling == "cyclic_poisson":
        # One part each, of sizes that differ by one at most.
        parts = [set(s % BANDS) for s in steps]
        assert all(len(part) <= 1 for part in parts)
        # An example is never drawn with odds 2^-6; half of them, 10^-13.
        assert sum(len(part) for part in parts) >= N // 2
        sizes = [sum(part == {p} for part in parts) for p in range(BANDS)]
        assert max(sizes) <= -(-N // BANDS)
        least, most = BANDS, -(-STEPS // BANDS)
    else:
        # Once a pass, at one place in all passes.
        for s in steps:
            np.testing.assert_array_equal(s, s[0] + PASS * np.arange(3))
        places = [int(s[0]) for s in steps]
        in_order = [i // B for i in range(N)]
        assert sorted(places) == in_order
        # A random order is this one with odds of some 10^-14.
        assert (places == in_order) == (sampling == "in_order")
        least, most = PASS, 3
    for s in steps:
        assert len(s) <= most
        assert np.all(np.diff(s) >= least)
    # And that is what the accountant is told.
    (release,) = events.releases(plan_of(sampling, 2.0), STEPS)
    if sampling == "cyclic_poisson":
        assert release == (B * BANDS / N, 2.0, most)
    else:
        np.testing.assert_allclose(release.noise_multiplier, 2 / np.sqrt(most))


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_a_resume_that_forgot_its_place_would_be_seen(
    sampling: str, tmp_path: Path
):
    steps = record(sampling, tmp_path / "run", forget=True)
    if sampling == "cyclic_poisson":
        # Most are drawn before and after, and keep their part by chance
        # with odds of a third each.
        assert any(len(set(s % BANDS)) > 1 for s in steps)
    else:
        assert any(np.any(np.diff(s) < PASS) for s in steps)
