"""report.json: what ran, on which data, how well and how privately.

Test metrics stand plainly; whatever was computed on training data stands under
"nonprivate", because ε does not cover it.
"""

import importlib.metadata
import json
import os
import pathlib
import platform
import sys
import tempfile
from collections.abc import Mapping
from typing import Any

import ml_collections
import tensorflow as tf

from tf_dpadaptive.data.task import Task
from tf_dpadaptive.version import __version__

FILE = "report.json"
_PACKAGES = ("tensorflow", "keras", "numpy", "dp-accounting")


def new(config: ml_collections.ConfigDict, task: Task) -> dict[str, Any]:
    """Returns the part of a report that is known before the first update.

    Args:
        config: The resolved config.
        task: The data that is used.

    Returns:
        A report with an empty history and 0 seconds.
    """
    versions = {name: importlib.metadata.version(name) for name in _PACKAGES}
    return {
        "config": config.to_dict(),
        "versions": {
            "tf_dpadaptive": __version__,
            "python": platform.python_version(),
            **versions,
        },
        "machine": {
            "platform": platform.platform(),
            "cpus": os.cpu_count(),
            "gpus": len(tf.config.list_physical_devices("GPU")),
        },
        "data": {
            "source": task.source,
            "num_train": len(task.x_train),
            "num_test": len(task.x_test),
            "sha256": dict(task.files),
        },
        "finished": False,
        "seconds": 0.0,
        "history": [],
    }


def read(
    workdir: pathlib.Path, config: ml_collections.ConfigDict
) -> dict[str, Any] | None:
    """Reads the report that a run in this folder goes on with.

    Args:
        workdir: The folder.
        config: The config of the run.

    Returns:
        The report; None if there is none.

    Raises:
        ValueError: If the folder holds a run with another config.
    """
    path = workdir / FILE
    if not path.exists():
        return None
    report = json.loads(path.read_text())
    before, now = (_comparable(c) for c in (report["config"], config.to_dict()))
    changed = [key for key in before | now if before.get(key) != now.get(key)]
    if changed:
        raise ValueError(
            f"`workdir` holds a run with another config; name another folder. "
            f"Received: workdir={str(workdir)!r}, which differs in "
            + ", ".join(
                f"{key} ({before.get(key)!r} there, {now.get(key)!r} here)"
                for key in changed
            )
            + "."
        )
    return report


def write(report: Mapping[str, Any], workdir: pathlib.Path) -> None:
    """Writes the report; a reader never sees half of one.

    Args:
        report: The report. An infinite number is written as "inf".
        workdir: The folder.
    """
    text = json.dumps(_jsonable(report), indent=2, allow_nan=False)
    with tempfile.NamedTemporaryFile(
        "w", dir=workdir, prefix=FILE, delete=False
    ) as file:
        file.write(text + "\n")
    pathlib.Path(file.name).chmod(0o644)
    os.replace(file.name, workdir / FILE)


def summary(report: Mapping[str, Any]) -> str:
    """Returns what a person wants to read at the end of a run.

    Args:
        report: A finished report.

    Returns:
        Data, accuracy, loss, time and the privacy statement.
    """
    metrics, before = report["metrics"], report["untrained"]
    accuracy = ""
    if "test_accuracy" in metrics:
        accuracy = f"Test accuracy: {100 * metrics['test_accuracy']:.2f} %. "
    return (
        f"{report['data']['source']}\n"
        f"{accuracy}Test loss: {metrics['test_loss']:.4f} (untrained "
        f"{before['test_loss']:.4f}) after {report['updates']} updates "
        f"in {report['seconds'] / 60:.1f} minutes.\n"
        f"{report['statement']}"
    )


def say(text: str) -> None:
    """Writes a line to the standard output, for binaries.

    Args:
        text: The line or lines.
    """
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _comparable(config: Mapping[str, Any]) -> dict[str, Any]:
    """Flat, without what may change between two starts of one run."""
    flat = {
        f"{section}.{key}": value
        for section, fields in _jsonable(config).items()
        for key, value in fields.items()
    }
    for key in ("data.dir", "train.verbose", "train.microbatch_size"):
        flat.pop(key, None)
    return flat


def _jsonable(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_jsonable(item) for item in value]
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and not abs(value) < float("inf"):
        return str(value)
    return value
