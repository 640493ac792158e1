"""The quickstart, as a new user starts it: the end-to-end accuracy gate."""

import json

import pytest

from tests.binaries import command


@pytest.mark.slow
def test_quickstart_needs_no_flags_and_is_accurate(tmp_path):
    done = command.run("quickstart", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (folder,) = (tmp_path / "runs").iterdir()
    report = json.loads((folder / "report.json").read_text())
    assert report["epsilon"] <= 3.0
    assert report["delta"] == 1e-4
    # Ten runs gave 93.6 to 96.4 %; the mean less three deviations is 93.
    assert report["metrics"]["test_accuracy"] >= 0.93
    assert "Test accuracy: 9" in done.stdout
    assert "differential privacy after 360 updates" in done.stdout
    assert "━" in done.stdout  # The progress bar.
    assert (folder / "training.png").stat().st_size > 10_000
    assert not list(folder.glob("*.dpa"))
