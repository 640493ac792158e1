"""One runner for every experiment: data → model → plan → fit → report.

    run(config, workdir)

The folder gets `report.json` (written anew after every epoch), `training.png`,
`model.keras` and, until the run is finished, `checkpoint.dpa`: that one file
is as sensitive as the data. A second start with the same folder goes on.
"""

import math
import os
import pathlib
import sys
import time
from typing import Any

import keras
import ml_collections
from absl import logging

import tf_dpadaptive as dpa
from tf_dpadaptive.data import tasks
from tf_dpadaptive.experiments import (
    build,
    gradient_norms,
    models,
    plots,
    report,
    sections,
)

_CHECKPOINT = "checkpoint.dpa"


def run(
    config: ml_collections.ConfigDict,
    workdir: str | os.PathLike[str],
    *,
    task: tasks.Task | None = None,
) -> dict[str, Any]:
    """Trains and evaluates what a config describes.

    Args:
        config: Sections `data`, `model`, `optimizer`, `privacy` and `train`,
            as made by `experiments.sections`.
        workdir: Folder for the results; made if it is not there.
        task: Data in memory, instead of what `config.data` names.

    Returns:
        The report: see `experiments.report`. Of a run that was finished
        before, the report of then.

    Raises:
        tasks.DataUnavailableError: If the data can't be had.
        ValueError: For a config that names what does not exist, and if
            `workdir` holds a run with another config.
        FloatingPointError: If a logged value stopped being finite; the report
            is written all the same, since what was spent is spent.

    Privacy: the weights in `model.keras` and the test metrics keep the (ε, δ)
        of the report. What stands under "nonprivate" there is not covered.
    """
    folder = pathlib.Path(workdir)
    folder.mkdir(parents=True, exist_ok=True)
    result = report.read(folder, config)
    if result is not None and result["finished"]:
        logging.warning(
            "%s holds a finished run: nothing to train. Name another workdir "
            "to train afresh.",
            folder,
        )
        return _checked(result)
    task = tasks.load(config.data) if task is None else task
    result = result or report.new(config, task)
    model, test = _model(config, task), task.examples("test")
    result["model"] = models.describe(model, config.model)
    if "untrained" not in result:
        result["untrained"] = _tested(model, task, test)
    _fit(model, config, task, test, folder, result)
    _finish(model, config, task, test, folder, result)
    return _checked(result)


def _model(config: ml_collections.ConfigDict, task: tasks.Task) -> Any:
    if config.train.seed is not None:
        keras.utils.set_random_seed(config.train.seed)
    plain = models.build(task=task, **sections.given(config.model))
    model = dpa.privatize(
        plain,
        clipping=config.train.clipping,
        microbatch_size=config.train.microbatch_size,
    )
    plan = build.plan(config, len(task.x_train))
    public = None if task.public is None else task.examples("public")
    model.compile(
        build.optimizer(config, plan, public),
        loss=keras.losses.SparseCategoricalCrossentropy(
            from_logits=True, reduction="mean_with_sample_weight"
        ),
        weighted_metrics=list(task.metrics),
    )
    return model


def _fit(
    model: Any,
    config: ml_collections.ConfigDict,
    task: tasks.Task,
    test: tuple[Any, ...],
    folder: pathlib.Path,
    result: dict[str, Any],
) -> None:
    verbose = config.train.verbose
    if verbose is None:
        verbose = 1 if sys.stdout.isatty() else 2
    model.fit(
        task.batches(model.optimizer.plan, config.train.steps_per_epoch),
        epochs=config.train.epochs,
        validation_data=test,
        validation_batch_size=task.test_batch_size,
        verbose=verbose,
        # The checkpoint comes last: a crash in between repeats an epoch, and
        # the report then drops the row that was written too early.
        callbacks=[
            dpa.callbacks.PrivacyBudget(),
            _Report(folder, result),
            dpa.callbacks.Resumable(folder / _CHECKPOINT),
        ],
    )


def _tested(
    model: Any, task: tasks.Task, test: tuple[Any, ...]
) -> dict[str, float]:
    x, y, weight = (*test, None)[:3]
    tested = model.evaluate(
        x,
        y,
        sample_weight=weight,
        batch_size=task.test_batch_size,
        verbose=0,
        return_dict=True,
    )
    return {f"test_{key}": value for key, value in tested.items()}


def _finish(
    model: Any,
    config: ml_collections.ConfigDict,
    task: tasks.Task,
    test: tuple[Any, ...],
    folder: pathlib.Path,
    result: dict[str, Any],
) -> None:
    """Evaluates, draws, writes, and removes the checkpoint with its secret."""
    plan = model.optimizer.plan
    last = result["history"][-1] if result["history"] else {}
    result |= {
        "metrics": _tested(model, task, test),
        "nonprivate": last.get("nonprivate", {}),
        "epsilon": model.epsilon(),
        "delta": plan.delta,
        "statement": model.privacy_statement(),
        "noise_multiplier": plan.noise_multiplier,
        "updates": model.ledger.updates,
        "finished": True,
    }
    norms = None
    if config.train.nonprivate_gradient_norms:
        norms = gradient_norms.nonprivate(model, *task.examples("train", 2000))
    plots.training(
        result["history"],
        folder / "training.png",
        title=f"{config.optimizer.name} on {task.source}",
        metric="test_" + (*task.metrics, "loss")[0],
        delta=plan.delta,
        nonprivate_norms=norms,
        l2_norm_clip=config.optimizer.l2_norm_clip,
    )
    model.save(folder / "model.keras")
    report.write(result, folder)
    (folder / _CHECKPOINT).unlink(missing_ok=True)


def _checked(result: dict[str, Any]) -> dict[str, Any]:
    if result.get("stopped"):
        raise FloatingPointError(
            f"Training was stopped: {result['stopped']}. Lower "
            "`optimizer.learning_rate`, or look at the data. The report says "
            "what was spent."
        )
    return result


class _Report(keras.callbacks.Callback):
    """Writes the report after every epoch; stops at a value not finite."""

    def __init__(self, folder: pathlib.Path, result: dict[str, Any]) -> None:
        super().__init__()
        self._folder = folder
        self._result = result
        self._since = time.monotonic()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Drops rows of updates that a restore took back."""
        taken = self.model.ledger.updates
        history = self._result["history"]
        self._result["history"] = [r for r in history if r["updates"] <= taken]

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Stops if a logged value is not finite."""
        self._stop_unless_finite(logs or {})

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Adds a row: test metrics plainly, training metrics apart."""
        logs = dict(logs or {})
        epsilon = logs.pop("epsilon")
        self._stop_unless_finite(logs)
        test = {
            key.replace("val_", "test_"): logs.pop(key)
            for key in list(logs)
            if key.startswith("val_")
        }
        now = time.monotonic()
        self._result["seconds"] += now - self._since
        self._since = now
        self._result["history"].append(
            {
                "updates": self.model.ledger.updates,
                "epsilon": epsilon,
                **test,
                "nonprivate": logs,
            }
        )
        report.write(self._result, self._folder)

    def _stop_unless_finite(self, logs: dict[str, Any]) -> None:
        for key, value in logs.items():
            if not math.isfinite(value):
                self._result["stopped"] = (
                    f"{key} is {value} after "
                    f"{self.model.ledger.updates} updates"
                )
                self.model.stop_training = True
