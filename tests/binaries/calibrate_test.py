"""dpa-calibrate, as a user starts it."""

import json

import pytest

from tests.binaries import command


def test_statement_table_and_picture(tmp_path):
    done = command.run(
        "calibrate",
        "--config.data.num_train=1000",
        "--config.privacy.expected_batch_size=50",
        "--config.privacy.epsilon=2",
        "--config.train.epochs=3",
        "--config.compare=('BLT(2) @ shuffled', 'BandedMF(40) @ in_order')",
        f"--workdir={tmp_path / 'run'}",
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert "(ε, δ)-differentially private with ε = " in done.stdout
    assert "  BLT(buffers=2)" in done.stdout
    # The plan's own noise is there, marked, with the σ of the statement.
    (own,) = (x for x in done.stdout.splitlines() if x.startswith("* "))
    sigma = done.stdout.split("Noise multiplier: ")[1].split()[0]
    assert own.split()[1:3] == ["Independent()", "poisson"]
    assert float(own.split()[3]) == pytest.approx(float(sigma), rel=1e-3)
    assert "refused" in done.stdout
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert report["updates"] == 60
    assert 1.98 <= report["epsilon"] <= 2.0
    assert (tmp_path / "run" / "noise.png").stat().st_size > 10_000


def test_a_typo_is_an_error(tmp_path):
    done = command.run("calibrate", "--config.privacy.eps=2", cwd=tmp_path)
    assert done.returncode != 0
    assert "--config.privacy.eps: no field 'eps'" in done.stderr
    assert "epsilon, expected_batch_size" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "runs").exists()


def test_noise_multiplier_takes_the_place_of_epsilon(tmp_path):
    done = command.run(
        "calibrate",
        "--config=calibrate",  # by name, from any folder
        "--config.privacy.noise_multiplier=1.5",
        "--config.data.num_train=1000",
        "--config.privacy.expected_batch_size=50",
        "--config.train.epochs=1",
        "--config.compare=('Independent()',)",
        f"--workdir={tmp_path / 'run'}",
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert report["noise_multiplier"] == 1.5
    assert report["config"]["privacy"]["epsilon"] is None


def test_a_config_that_is_not_there(tmp_path):
    done = command.run("calibrate", "--config=imagenet", cwd=tmp_path)
    assert done.returncode != 0
    assert "There is no config 'imagenet'" in done.stderr
    assert "Traceback" not in done.stderr
