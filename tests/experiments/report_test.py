"""Tests of report.json."""

import json
import math
import sys

import numpy as np
import pytest

from tests.experiments import small
from tf_dpadaptive.experiments import report


def test_new_report_says_what_runs_on_what():
    config, task = small.config(), small.task()
    made = report.new(config, task)
    assert made["config"] == config.to_dict()
    assert made["data"]["source"] == "bright and dark"
    assert made["data"]["num_train"] == 96
    assert made["versions"]["python"] == sys.version.split()[0]
    assert {"tensorflow", "keras", "dp-accounting"} <= set(made["versions"])
    assert not made["finished"]


def test_report_is_json_whatever_the_numbers(tmp_path):
    made = report.new(small.config(), small.task())
    made["epsilon"] = math.inf
    made["loss"] = np.float32("nan")
    made["history"] = [{"updates": np.int64(3), "test_accuracy": np.float32(1)}]
    report.write(made, tmp_path)

    def refuse(name):
        raise AssertionError(f"{name} is no JSON")

    text = (tmp_path / "report.json").read_text()
    read = json.loads(text, parse_constant=refuse)
    assert float(read["epsilon"]) == math.inf
    assert math.isnan(float(read["loss"]))
    assert read["history"] == [{"updates": 3, "test_accuracy": 1.0}]
    assert [file.name for file in tmp_path.iterdir()] == ["report.json"]


def test_read_goes_on_with_the_same_config(tmp_path):
    config = small.config(privacy={"epsilon": 3.0})
    assert report.read(tmp_path, config) is None
    report.write(report.new(config, small.task()), tmp_path)
    # Where the data lies and what is shown is not what the run is.
    config.data.dir = "/elsewhere"
    config.train.verbose = 2
    assert report.read(tmp_path, config) is not None


def test_read_refuses_another_config(tmp_path):
    config = small.config()
    report.write(report.new(config, small.task()), tmp_path)
    config.optimizer.learning_rate = 0.2
    with pytest.raises(
        ValueError, match=r"optimizer.learning_rate \(0.1 there, 0.2 here\)"
    ):
        report.read(tmp_path, config)


def test_summary_has_accuracy_and_statement():
    made = report.new(small.config(), small.task()) | {
        "metrics": {"test_accuracy": 0.953, "test_loss": 0.25},
        "untrained": {"test_loss": 0.75},
        "updates": 12,
        "seconds": 90.0,
        "statement": "(3, 0.001)-differential privacy",
    }
    text = report.summary(made)
    assert "95.30 %" in text
    assert "0.2500 (untrained 0.7500)" in text
    assert "1.5 minutes" in text
    assert "bright and dark" in text
    assert text.endswith("(3, 0.001)-differential privacy")


def test_summary_without_accuracy():
    made = report.new(small.config(), small.task()) | {
        "metrics": {"test_loss": 0.25},
        "untrained": {"test_loss": 0.75},
        "updates": 12,
        "seconds": 90.0,
        "statement": "",
    }
    assert "ccuracy" not in report.summary(made)


def test_say_writes_a_line_to_the_standard_output(capsys):
    report.say("a line")
    assert capsys.readouterr().out == "a line\n"
