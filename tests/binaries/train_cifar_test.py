"""dpa-train-cifar: its config, and that a second start goes on."""

import pathlib

import tf_dpadaptive
from tests.binaries import command

CONFIGS = pathlib.Path(tf_dpadaptive.__file__).parent.parent / "configs"


def test_second_start_shows_the_finished_run(tmp_path):
    flags = [
        f"--config={CONFIGS / 'smoke.py'}",
        f"--workdir={tmp_path / 'run'}",
    ]
    first = command.run("train_cifar", *flags, cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    second = command.run("train_cifar", *flags, cwd=tmp_path)
    assert second.returncode == 0, second.stderr
    assert second.stdout == first.stdout
    assert "holds a finished run" in second.stderr
