"""Callbacks of private training."""

import logging
import os
from typing import Any

import keras

from tf_dpadaptive import _validate
from tf_dpadaptive.training import checkpoint, diagnostics

logger = logging.getLogger("tf_dpadaptive")


class PrivacyBudget(keras.callbacks.Callback):
    """Shows ε while training and stops before the plan is passed.

    Args:
        delta: δ in (0, 1) at which ε is shown; None takes the plan's.

    ε stands in the logs as `epsilon` at the end of every epoch
    (`epsilon_sampling_not_verified` where the batches did not come from
    `plan.batches`). Without this callback, passing the plan raises; with it,
    training stops cleanly, and a line in the log says so.
    """

    #: `fit` reads this: an execution is cut short where the plan ends.
    stops_at_budget = True

    def __init__(self, delta: float | None = None) -> None:
        super().__init__()
        if delta is not None:
            _validate.open_unit(delta=delta)
        self.delta = delta
        self._epochs_done = 0

    def on_train_begin(self, logs: Any = None) -> None:
        """Asks for ε once, so that what is missing is said before training."""
        self.model.optimizer.plan.epsilon(1, self.delta)
        self._epochs_done = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Stops when no update is left."""
        plan = self.model.optimizer.plan
        if self.model.ledger.remaining(plan) == 0:
            self.model.stop_training = True

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Adds `epsilon` to the logs."""
        self._epochs_done = epoch + 1
        if logs is not None:
            name, epsilon = self.model.ledger.watched_epsilon(self.delta)
            logs[name] = epsilon

    def on_train_end(self, logs: Any = None) -> None:
        """Says so, if the plan ended before the epochs that were asked for."""
        plan, asked = (
            self.model.optimizer.plan,
            (self.params or {}).get("epochs"),
        )
        if self.model.ledger.remaining(plan) != 0:
            return
        if asked is None or self._epochs_done < asked:
            logger.warning(
                "PrivacyBudget: the plan's %s updates are taken; training "
                "stopped after %s of %s epochs.",
                plan.num_steps,
                self._epochs_done,
                asked,
            )


class Diagnostics(keras.callbacks.Callback):
    """Shows how the clip bears on the data, in the logs of this `fit` alone.

    `nonprivate/clip_fraction`, the share of examples that were clipped, and
    `nonprivate/mean_norm`, the mean norm before the clip (in the coordinates
    in which the optimizer clips). At the end of an epoch the mean over its
    executions, of each of which the last update counts.

    Privacy: NONE. These numbers are computed from private data and not covered
        by any ε: for public data, or for eyes that may see the data. They are
        kept in the history that `fit` returns, and in no variable or file.
    """

    def on_train_begin(self, logs: Any = None) -> None:
        """Turns them on; `fit` turns them off when it ends."""
        diagnostics.switch(self.model, True)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Begins the means anew."""
        self._seen: list[dict[str, float]] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Takes the numbers of an execution."""
        self._seen.append(
            {
                name: float(value)
                for name, value in (logs or {}).items()
                if name.startswith(diagnostics.PREFIX)
            }
        )

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Puts the means into the logs."""
        if logs is None or not self._seen:
            return
        for name in self._seen[0]:
            total = sum(seen[name] for seen in self._seen)
            logs[name] = total / len(self._seen)


class Resumable(keras.callbacks.Callback):
    """Saves a checkpoint after epochs, and goes on from it at the next start.

    Args:
        path: File of the checkpoint (see `checkpoint.save`: as sensitive as
            the data, mode 0600).
        every: Epochs between checkpoints. Default 1.

    A later `fit` with the same arguments continues after the last saved epoch.
    """

    #: `fit` reads this: the budget is checked after the restore.
    resumes = True

    def __init__(self, path: str | os.PathLike[str], every: int = 1) -> None:
        super().__init__()
        _validate.positive_integer(every=every)
        self.path = os.fspath(path)
        if os.path.isdir(self.path):
            raise ValueError(
                "`path` must name a file (new or of an earlier run), not a "
                f"folder. Received: path={self.path!r}."
            )
        self.every = every

    def on_train_begin(self, logs: Any = None) -> None:
        """Restores, where there is something to restore."""
        if os.path.exists(self.path):
            extra = checkpoint.restore(self.model, self.path)
            self.model._initial_epoch = extra["epoch"] + 1

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Saves the state after this epoch."""
        if (epoch + 1) % self.every == 0:
            checkpoint.save(self.model, self.path, extra={"epoch": epoch})

    def on_train_end(self, logs: Any = None) -> None:
        """Lets the next `fit` begin where it is told to."""
        self.model._initial_epoch = None
