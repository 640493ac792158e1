"""The ledger: what really ran on a model, and the ε of exactly that.

One entry a run (one optimizer object and its plan). Nobody types a step count:
the training function books the updates that were taken, whatever ended them.
"""

import dataclasses
import uuid
import warnings
from collections.abc import Mapping
from itertools import zip_longest
from typing import Any

import keras

from tf_dpadaptive.accounting.compose import epsilon_of_runs
from tf_dpadaptive.plan import PrivacyPlan


@dataclasses.dataclass
class Run:
    """Updates of one optimizer object under one plan.

    Attributes:
        run_id: Unique name of the run.
        plan: The plan the updates were taken under.
        optimizer: Class name of the optimizer.
        private: False for baselines that read raw gradients: ε is ∞.
        seeded: Whether the noise came from a known seed.
        verified: Updates on batches that `plan.batches` sampled.
        unverified: Updates on data whose sampling nobody checked.
        forks: Where the run was taken up from a checkpoint: a unique name, and
            after how many updates. Whoever takes up the same checkpoint twice
            has two runs that are one up to there.
    """

    run_id: str
    plan: PrivacyPlan
    optimizer: str
    private: bool = True
    seeded: bool = False
    verified: int = 0
    unverified: int = 0
    forks: tuple[tuple[str, int], ...] = ()

    @property
    def updates(self) -> int:
        """All updates of the run."""
        return self.verified + self.unverified

    def common(self, other: "Run") -> int:
        """Returns the updates that are in both of two runs, the very same.

        Args:
            other: A run of the same `run_id`.
        """
        for mine, theirs in zip_longest(self.forks, other.forks):
            if mine != theirs:
                ends = [fork[1] for fork in (mine, theirs) if fork]
                return min(self.updates, other.updates, *ends)
        return min(self.updates, other.updates)


class Ledger:
    """All runs of a model, in order."""

    def __init__(self) -> None:
        self.runs: list[Run] = []

    def book(self, optimizer: Any, updates: int, *, verified: bool) -> None:
        """Books updates that an optimizer has taken.

        Args:
            optimizer: The DP optimizer.
            updates: How many, ≥ 0.
            verified: Whether the plan's own sampler made the batches.
        """
        if updates <= 0:
            return
        run = self._run(optimizer)
        if verified:
            run.verified += updates
        else:
            run.unverified += updates

    def _run(self, optimizer: Any) -> Run:
        for run in self.runs:
            if run.run_id == optimizer.run_id and run.plan == optimizer.plan:
                return run
        run = Run(
            optimizer.run_id,
            optimizer.plan,
            type(optimizer).__name__,
            optimizer.private,
            optimizer.seeded,
        )
        self.runs.append(run)
        return run

    def merge(self, other: "Ledger") -> None:
        """Takes over the runs of another ledger.

        Of one run the longer; of two branches of a run, both.
        """
        if other is self:
            return
        places = {
            (run.run_id, run.plan): place for place, run in enumerate(self.runs)
        }
        for run in other.runs:
            place = places.get((run.run_id, run.plan))
            if place is None:
                self.runs.append(run)
                continue
            mine = self.runs[place]
            common = mine.common(run)
            if common == run.updates:
                continue
            if common == mine.updates:
                self.runs[place] = run
            else:
                branch = dataclasses.replace(run, run_id=uuid.uuid4().hex)
                self.runs.append(branch)

    def abandon(self, run_id: str, checkpoint: "Ledger") -> None:
        """Keeps a run that went past a checkpoint as a branch of its own.

        What was released between the checkpoint and now stays charged; the
        resumed run counts on from the checkpoint.

        Args:
            run_id: The run that is resumed.
            checkpoint: The ledger of the checkpoint.
        """
        saved = [run for run in checkpoint.runs if run.run_id == run_id]
        for run in self.runs:
            if run.run_id == run_id:
                known = max(map(run.common, saved), default=0)
                if run.updates > known:
                    run.run_id = uuid.uuid4().hex

    def fork(self, run_id: str) -> None:
        """Marks that a run goes on from a checkpoint, and where.

        Args:
            run_id: The run that is resumed.
        """
        for run in self.runs:
            if run.run_id == run_id:
                run.forks = (*run.forks, (uuid.uuid4().hex, run.updates))

    @property
    def updates(self) -> int:
        """All updates of all runs."""
        return sum(run.updates for run in self.runs)

    @property
    def verified(self) -> bool:
        """Whether every update was taken on batches of `plan.batches`."""
        return all(run.unverified == 0 for run in self.runs)

    def watched_epsilon(self, delta: float | None = None) -> tuple[str, float]:
        """Returns ε for logs: the name it goes by, and its value.

        Args:
            delta: As in `epsilon`.
        """
        name = "epsilon" if self.verified else "epsilon_sampling_not_verified"
        return name, self._epsilon(delta)

    def used(self, plan: PrivacyPlan) -> int:
        """Returns the updates taken under an equal plan, in any run."""
        return sum(run.updates for run in self.runs if run.plan == plan)

    def remaining(self, plan: PrivacyPlan) -> int | None:
        """Returns the updates left under a plan; None where it sets no limit.

        Updates under an equal plan count together, whichever optimizer took
        them: a new optimizer does not renew a budget.
        """
        if plan.num_steps is None:
            return None
        return max(0, plan.num_steps - self.used(plan))

    def _delta(self, delta: float | None) -> float:
        if delta is not None:
            return delta
        deltas = [r.plan.delta for r in self.runs if r.plan.delta is not None]
        if not deltas:
            raise ValueError(
                "ε needs a δ: the plans of this ledger have none. Pass "
                "`delta=` (less than 1 / number of examples)."
            )
        return max(deltas)

    def epsilon(self, delta: float | None = None) -> float:
        """Returns ε of everything that ran, at δ.

        Args:
            delta: δ in (0, 1); None takes the plans' (the largest, if several).

        Warns (and the statement says) where the sampling of an update was not
        verified. Each run is charged for itself: two runs of a fixed order may
        have two orders, and an example be last in one and first in the other.
        """
        if not self.verified:
            warnings.warn(
                "SAMPLING NOT VERIFIED: some updates were taken on batches "
                "that `plan.batches` did not make; this ε holds only if they "
                "were sampled as the plan says.",
                stacklevel=3,
            )
        return self._epsilon(delta)

    def _epsilon(self, delta: float | None) -> float:
        if not self.runs:
            return 0.0
        delta = self._delta(delta)
        if not all(run.private for run in self.runs):
            return float("inf")
        return epsilon_of_runs(
            [(run.plan, run.updates) for run in self.runs], delta
        )

    def statement(self, delta: float | None = None) -> str:
        """Returns in words what may be said of the model's privacy."""
        if not self.runs:
            return (
                "No private update has been taken: this ledger makes no claim "
                "about the weights."
            )
        delta = self._delta(delta)
        epsilon = self._epsilon(delta)
        head = (
            f"({epsilon:.4g}, {delta:.3g})-differential privacy after "
            f"{self.updates} updates."
            if epsilon < float("inf")
            else "NOT PRIVATE: epsilon is infinite after "
            f"{self.updates} updates."
        )
        if not self.verified:
            head = f"SAMPLING NOT VERIFIED: {head[:-1]}, IF the batches were "
            head += "sampled as the plan says, which was not seen."
        if any(run.seeded for run in self.runs):
            head += " SEEDED: none against those who know the seed."
        lines = [head]
        for run in self.runs:
            line = f"{run.optimizer}, {run.updates} updates"
            line += ", counted alone: " if len(self.runs) > 1 else ": "
            if run.unverified:
                line += (
                    f"SAMPLING NOT VERIFIED for {run.unverified} updates, "
                    "whose batches were not those of `plan.batches` in `fit`; "
                    "what follows holds only if they were sampled so. "
                )
            if not run.private:
                line += "this optimizer reads raw gradients."
            elif run.plan.noise_multiplier == 0:
                line += "no noise was added."
            else:
                line += run.plan.statement(run.updates, delta)
            if run.seeded:
                line += (
                    " SEEDED: whoever knows the seed can remove the noise, and "
                    "there is no privacy against them."
                )
            lines.append(line)
        lines.append(
            "Not covered: weights set by anything but these updates (earlier "
            "training, loading, `adapt`), regularizers and constraints that "
            "look at data, data-dependent choices outside this ledger (tuning, "
            "early stopping), metrics shown during training, and "
            "floating-point noise."
        )
        return "\n".join(lines)

    def to_config(self) -> dict[str, Any]:
        """Returns a JSON-serialisable form; it holds no secret and no data."""
        return {
            "runs": [
                {
                    "run_id": run.run_id,
                    "plan": keras.saving.serialize_keras_object(run.plan),
                    "optimizer": run.optimizer,
                    "private": run.private,
                    "seeded": run.seeded,
                    "verified": run.verified,
                    "unverified": run.unverified,
                    "forks": [list(fork) for fork in run.forks],
                }
                for run in self.runs
            ]
        }

    @classmethod
    def from_config(cls, config: Mapping[str, Any] | None) -> "Ledger":
        """Returns the ledger that `to_config` described; empty for None."""
        ledger = cls()
        for given in (config or {}).get("runs", []):
            entry: dict[str, Any] = dict(given)
            if isinstance(entry["plan"], Mapping):
                entry["plan"] = keras.saving.deserialize_keras_object(
                    dict(entry["plan"])
                )
            entry["forks"] = tuple(
                (name, at) for name, at in entry.get("forks", ())
            )
            ledger.runs.append(Run(**entry))
        return ledger
