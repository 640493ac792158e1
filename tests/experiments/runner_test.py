"""Tests of the runner: every optimizer, report, resume, and what stops it."""

import json
import math

import keras
import numpy as np
import pytest

import tf_dpadaptive as dpa
from tests.experiments import small
from tf_dpadaptive.experiments import runner

OPTIMIZERS = sorted(set(dpa.optimizers.__all__) - {"DPOptimizer", "recommend"})
# One of each kind; the others are built alike and run with the slow tests.
QUICK = (
    "AdaCliP",
    "DPAdam",
    "DPAdamSideInformation",
    "DPPostProcessing:Lion",
    "NonPrivatePreconditionerAdam",
)
# What twelve updates on this task need beside what all share.
_SCALED = {"l2_norm_clip": 10.0, "scale_epsilon": 0.1}
_DELAYED = {"plain_steps": 3, "adaptive_steps": 3, "adaptive_l2_norm_clip": 5.0}
_STABLE = {"epsilon": 0.1}  # Noisy second moments come out negative.
VALUES = {
    "AdaCliP": {"h2": 0.1, "learning_rate": 0.5},
    "DPAdagradBiasCorrected": _STABLE,
    "DPAdagradDelayed": {"learning_rate": 0.5, **_DELAYED},
    "DPAdagradIndependentMoments": _STABLE,
    "DPAdagradJointMoments": _STABLE,
    "DPAdagradScaleThenPrivatize": _SCALED,
    "DPAdamBiasCorrected": _STABLE,
    "DPAdamIndependentMoments": _STABLE,
    "DPAdamJointMoments": _STABLE,
    "DPAdamScaleThenPrivatize": _SCALED,
    "DPMicroAdam": {"density": 1.0},
    "DPRMSpropDelayed": {"learning_rate": 0.3, **_DELAYED},
    "DPSGD": {"learning_rate": 1.0},
    "DPPostProcessing:Lion": {"learning_rate": 0.05},
}
# So little noise that every method learns, those for large batches as well.
PRIVATE = {"privacy": {"noise_multiplier": 0.05}}


def read(folder):
    return json.loads((folder / "report.json").read_text())


@pytest.mark.parametrize(
    "name",
    [
        name if name in QUICK else pytest.param(name, marks=pytest.mark.slow)
        for name in [*OPTIMIZERS, "DPPostProcessing:Lion"]
    ],
)
def test_every_optimizer_learns_and_reports(name, tmp_path):
    task = small.task().with_public(16)
    config = small.config(name, epochs=4, **PRIVATE, **VALUES.get(name, {}))
    untrained = runner._model(config, task)
    before = untrained.evaluate(task.x_test, task.y_test, verbose=0)[0]
    made = runner.run(config, tmp_path, task=task)
    # Batches and noise are drawn; this one has reached 0.53 in twelve updates.
    most = 0.8 if name == "DPRMSpropDelayed" else 0.5
    assert made["metrics"]["test_loss"] < most * before
    assert made["updates"] == 4 * 3
    assert made["delta"] == 1e-3
    private = name != "NonPrivatePreconditionerAdam"
    assert math.isfinite(made["epsilon"]) == private
    assert made["statement"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished")
    config = small.config(epochs=3, privacy={"epsilon": 8.0})
    config.train.nonprivate_gradient_norms = True
    return config, folder, runner.run(config, folder, task=small.task())


def test_report_has_what_was_spent_and_learnt(finished):
    config, folder, made = finished
    assert 7.9 < made["epsilon"] <= 8.0
    assert made["history"][-1]["epsilon"] == made["epsilon"]
    assert [row["updates"] for row in made["history"]] == [3, 6, 9]
    epsilons = [row["epsilon"] for row in made["history"]]
    assert epsilons == sorted(epsilons)
    assert made["metrics"]["test_accuracy"] > 0.8
    assert "8" in made["statement"]
    assert made["noise_multiplier"] > 0
    assert read(folder) == json.loads(json.dumps(made))
    assert made["config"]["optimizer"]["name"] == "DPAdam"
    assert made["config"] == config.to_dict()
    assert made["seconds"] > 0
    assert made["model"] == {"parameters": 34, "weights": "random"}
    assert made["untrained"]["test_loss"] > made["metrics"]["test_loss"]


def test_training_metrics_stand_under_nonprivate_only(finished):
    _, _, made = finished
    assert set(made["nonprivate"]) == {"loss", "accuracy"}
    assert set(made["metrics"]) == {"test_loss", "test_accuracy"}
    for row in made["history"]:
        assert set(row) == {
            "updates",
            "epsilon",
            "test_loss",
            "test_accuracy",
            "nonprivate",
        }


def test_folder_holds_results_and_no_secret(finished):
    _, folder, made = finished
    names = {file.name for file in folder.iterdir()}
    assert names == {"report.json", "training.png", "model.keras"}
    task = small.task()
    # Plain Keras loads the model; the accuracy is that of the report.
    model = keras.models.load_model(folder / "model.keras", compile=False)
    right = model.predict(task.x_test, verbose=0).argmax(1) == task.y_test
    assert np.mean(right) == pytest.approx(made["metrics"]["test_accuracy"])


def test_finished_run_is_not_trained_again(finished):
    config, folder, made = finished
    weights = (folder / "model.keras").read_bytes()
    again = runner.run(config, folder)  # Not even the data is needed.
    assert again == json.loads(json.dumps(made))
    assert (folder / "model.keras").read_bytes() == weights


def test_folder_of_another_run_is_refused(finished):
    config, folder, _ = finished
    other = config.copy_and_resolve_references()
    other.optimizer.learning_rate = 0.3
    with pytest.raises(ValueError, match="another config"):
        runner.run(other, folder, task=small.task())


class Crash(Exception):
    """What the machine did."""


def crash_in_epoch(monkeypatch, number, *, after_report=False):
    """Makes the next run break in the middle, or after the report's row."""

    def end(self, epoch, logs=None):
        if after_report and epoch == number:
            original(self, epoch, logs)
        if epoch == number:
            raise Crash
        original(self, epoch, logs)

    original = runner._Report.on_epoch_end
    monkeypatch.setattr(runner._Report, "on_epoch_end", end)


@pytest.mark.parametrize("after_report", [False, True])
def test_second_start_goes_on(tmp_path, monkeypatch, after_report):
    config = small.config(epochs=4, privacy={"epsilon": 8.0})
    with monkeypatch.context() as patch:
        crash_in_epoch(patch, 2, after_report=after_report)
        with pytest.raises(Crash):
            runner.run(config, tmp_path, task=small.task())
    before = read(tmp_path)
    assert not before["finished"]
    assert len(before["history"]) == (3 if after_report else 2)
    secret = tmp_path / "checkpoint.dpa"
    assert secret.stat().st_mode & 0o777 == 0o600
    made = runner.run(config, tmp_path, task=small.task())
    # The epoch that was cut short is repeated; the charge is that of the plan.
    assert [row["updates"] for row in made["history"]] == [3, 6, 9, 12]
    assert made["history"][:2] == before["history"][:2]
    assert made["updates"] == 12
    assert 7.9 < made["epsilon"] <= 8.0
    assert made["seconds"] > before["seconds"]
    assert not secret.exists()


def test_value_that_is_not_finite_stops_and_is_reported(tmp_path):
    task = small.task()
    task.x_test[0] = np.nan
    config = small.config(epochs=5)
    for _ in range(2):  # A second start does not turn it into a success.
        with pytest.raises(FloatingPointError, match="val_loss is nan after 3"):
            runner.run(config, tmp_path, task=task)
    made = read(tmp_path)
    assert "val_loss is nan" in made["stopped"]
    assert made["updates"] == 3
    assert 0 < made["epsilon"] < math.inf


def test_pass_of_a_given_length(tmp_path):
    config = small.config(epochs=2, privacy={"epsilon": 8.0})
    config.train.steps_per_epoch = 5
    made = runner.run(config, tmp_path, task=small.task())
    assert [row["updates"] for row in made["history"]] == [5, 10]
    # Calibrated to the updates that are taken.
    assert 7.9 < made["epsilon"] <= 8.0


def test_no_noise_is_infinite_epsilon(tmp_path):
    config = small.config(epochs=1, privacy={"noise_multiplier": 0.0})
    made = runner.run(config, tmp_path, task=small.task())
    assert made["epsilon"] == math.inf
    assert read(tmp_path)["epsilon"] == "inf"


def test_huge_noise_destroys_accuracy(tmp_path):
    # What is left is a random linear map: of 10 digits it gets 10 % right,
    # with a deviation of 8 % from map to map. 50 % is 5 deviations away.
    config = small.config(epochs=2, privacy={"noise_multiplier": 1e6})
    config.data.num_train, config.data.num_test = 128, 360
    made = runner.run(config, tmp_path)
    assert made["metrics"]["test_accuracy"] < 0.5


def test_initial_weights_follow_the_seed_and_the_noise_does_not(tmp_path):
    config = small.config(epochs=1)
    first, second = (runner._model(config, small.task()) for _ in range(2))
    for one, other in zip(first.weights, second.weights, strict=True):
        np.testing.assert_array_equal(one, other)
    losses = {
        runner.run(config, tmp_path / name, task=small.task())["metrics"][
            "test_loss"
        ]
        for name in "ab"
    }
    assert len(losses) == 2


def test_adjacency_and_sampling_reach_the_plan(tmp_path):
    config = small.config(
        epochs=1, privacy={"noise_multiplier": 1.0, "adjacency": "replace"}
    )
    model = runner._model(config, small.task())
    assert model.optimizer.plan.adjacency == "replace"
