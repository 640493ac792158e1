"""Tests of the command line that the binaries share; see tests/binaries."""

import pathlib
import runpy

import pytest

import tf_dpadaptive as dpa
from tests.experiments import small
from tf_dpadaptive.experiments import build, cli, runner

OPTIMIZERS = sorted(set(dpa.optimizers.__all__) - {"DPOptimizer", "recommend"})
CONFIGS = ["bert_tiny", "cifar", "mnist", "quickstart", "smoke"]


def load(name):
    return runpy.run_path(str(cli.config_path(name)))["get_config"]


def test_config_path_finds_what_lies_beside_the_package():
    assert cli.config_path("mnist").name == "mnist.py"
    with pytest.raises(FileNotFoundError, match="--config=FILE"):
        cli.config_path("imagenet")


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_config_loads_every_optimizer(name, optimizer):
    config = load(name)(optimizer)
    assert config.optimizer.name == optimizer
    assert config.is_locked
    plan = dpa.PrivacyPlan(1.0, 8, num_examples=32, num_steps=4)
    made = build.optimizer(config, plan, small.task().with_public(20).public)
    assert type(made).__name__ == optimizer


@pytest.mark.parametrize("name", CONFIGS)
def test_config_says_command_time_accuracy_and_epsilon(name):
    text = cli.config_path(name).read_text()
    assert len(text.splitlines()) <= 60
    docstring = text.split('"""')[1]
    assert "python -m tf_dpadaptive.binaries." in docstring
    if name != "smoke":
        for word in ("minute", "%", "ε", "δ", "CPU"):
            assert word in docstring


@pytest.mark.parametrize(
    "path", sorted(pathlib.Path(cli.__file__).parents[1].glob("binaries/*.py"))
)
def test_binaries_are_short(path):
    assert len(path.read_text().splitlines()) <= 25


def test_smoke_config_runs(tmp_path):
    made = runner.run(load("smoke")(), tmp_path)
    assert made["updates"] == 8
