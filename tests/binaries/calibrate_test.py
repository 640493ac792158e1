"""dpa-calibrate, as a user starts it."""

import json

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
    assert "BLT(buffers=2)" in done.stdout
    assert "refused" in done.stdout
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert report["updates"] == 60
    assert 1.98 <= report["epsilon"] <= 2.0
    assert (tmp_path / "run" / "noise.png").stat().st_size > 10_000


def test_a_typo_is_an_error(tmp_path):
    done = command.run("calibrate", "--config.privacy.eps=2", cwd=tmp_path)
    assert done.returncode != 0
    assert "eps" in done.stderr
    assert not (tmp_path / "runs").exists()
