"""dpa-train-bert: two updates on a small text, offline; what a lack says."""

import json

from tests.binaries import command
from tests.data import small_text


def test_two_updates_on_a_small_text(tmp_path):
    path, vocabulary = small_text.write(tmp_path)
    done = command.run(
        "train_bert",
        f"--config.data.path={path}",
        f"--config.data.vocabulary={vocabulary}",
        "--config.data.sequence_length=16",
        "--config.model.num_layers=1",
        "--config.model.hidden_dim=16",
        "--config.privacy.expected_batch_size=32",
        "--config.train.epochs=2",
        "--config.train.steps_per_epoch=1",
        f"--workdir={tmp_path / 'run'}",
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert report["updates"] == 2
    assert report["model"]["weights"] == "random"
    assert set(report["data"]["sha256"]) == {"text.jsonl", "vocabulary.txt"}
    assert "differential privacy after 2 updates" in done.stdout
    assert "Test loss" in done.stdout


def test_no_text_is_one_error_that_lists_the_ways(tmp_path):
    done = command.run("train_bert", cwd=tmp_path)
    assert done.returncode == 1
    assert "DataUnavailableError" in done.stderr
    assert "--config.data.path=FILE_OR_FOLDER" in done.stderr
    assert "Traceback" not in done.stderr
