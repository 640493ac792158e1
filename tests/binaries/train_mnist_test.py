"""dpa-train-mnist: flags, configs, and what it says when something is wrong."""

import json
import pathlib

import pytest

import tf_dpadaptive
from tests.binaries import command

SMOKE = str(
    pathlib.Path(tf_dpadaptive.__file__).parent.parent / "configs" / "smoke.py"
)


def test_smoke_run_with_an_optimizer_and_an_override(tmp_path):
    done = command.run(
        "train_mnist",
        f"--config={SMOKE}:DPAdagrad",
        "--config.optimizer.learning_rate=0.125",
        "--config.optimizer.weight_decay=1e-4",
        "--config.privacy.noise_multiplier=2",
        f"--workdir={tmp_path / 'run'}",
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    optimizer = report["config"]["optimizer"]
    assert optimizer["name"] == "DPAdagrad"
    assert optimizer["learning_rate"] == 0.125
    assert optimizer["weight_decay"] == 1e-4
    assert report["noise_multiplier"] == 2.0
    assert "Test accuracy" in done.stdout
    assert "0.001)-differential privacy after 8 updates" in done.stdout


@pytest.mark.parametrize(
    "flag",
    [
        "--config.optimizer.beta_3=0.9",
        "--config.train.epoch=3",
        "--config.train.epochs=1e3",
    ],
)
def test_typo_fails_before_anything_runs(flag, tmp_path):
    done = command.run("train_mnist", flag, cwd=tmp_path)
    assert done.returncode != 0
    assert flag.split("=")[0].rsplit(".", 1)[1] in done.stderr
    assert not (tmp_path / "runs").exists()


def test_missing_data_is_one_error_that_lists_the_ways(tmp_path):
    done = command.run(
        "train_mnist",
        "--config.data.name=no_such_data",
        f"--config.data.dir={tmp_path}",
        cwd=tmp_path,
    )
    assert done.returncode == 1
    assert "DataUnavailableError" in done.stderr
    assert "--config.data.dir=FOLDER" in done.stderr
    assert "Traceback" not in done.stderr
