"""The train function with its budget check and its booking, on the host.

Runs before and after every call of Keras' train function, whatever called it
(`fit`, `train_on_batch`; eager, graph, XLA; several steps an execution).
"""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

from tf_dpadaptive.clipping.example import global_generator
from tf_dpadaptive.training import checks


class BudgetExhausted(RuntimeError):
    """More updates were asked for than the plan has."""


class TrainFunction:
    """Wraps Keras' train function: checks, runs, books what really ran."""

    def __init__(self, model: Any, function: Callable[[Any], Any]) -> None:
        self._model = model
        self._function = function
        self._traced = False
        # What the function was traced with: nothing else may be booked.
        self.optimizer = model.optimizer

    def __call__(self, iterator: Any) -> Any:
        """Runs the next execution, unless the budget or a check refuses."""
        model, optimizer = self._model, self._model.optimizer
        before_updates(model)
        if optimizer is not self.optimizer or model.train_function is not self:
            raise RuntimeError(
                "A train function made for another optimizer was called: its "
                "updates would not be booked. Call `compile` and `fit`."
            )
        optimizer._keys.renew_after_fork()
        global_generator()  # as a variable, it can't be made in a trace
        left = model.private.ledger.remaining(optimizer.plan)
        if left is not None and left < model.steps_per_execution:
            iterator = iter(self._last(iterator, left))
        before = optimizer.noise_step
        model.private.stepping = True
        try:
            result = self._function(iterator)
            self._traced = True
            return result
        finally:
            model.private.stepping = False
            if not self._traced:
                # TensorFlow can't trace anew what failed and made variables.
                model.train_function = None
            model.private.book(optimizer, optimizer.noise_step - before)

    def _last(self, iterator: Iterator[Any], left: int) -> list[Any]:
        """The elements of an execution in which the plan may run out."""
        elements = list(itertools.islice(iterator, left))
        if model_stops_at_budget(self._model) and elements:
            return elements
        more = list(itertools.islice(iterator, 1))
        if more:
            raise spent(self._model)
        if not elements:
            raise StopIteration
        return elements


def before_updates(model: Any) -> None:
    """Raises if the model must not take another update as it stands."""
    reasons = checks.optimizer_reasons(model.optimizer)
    if not reasons and model.optimizer is not model.private.optimizer:
        reasons.append(
            "`model.optimizer` was replaced after `compile`: the compiled "
            "step and the ledger belong to the other one. Call `compile`."
        )
    if not reasons:
        reasons = checks.variable_reasons(model)
        reasons += continuity_reasons(model)
    if "train_step" in vars(model):
        reasons.append("`train_step` was replaced on the model. Remove it.")
    checks.raise_all(reasons, "This update")


def check_past(model: Any) -> None:
    """Raises if more was released than the ledger of the model knows of."""
    optimizer = model.optimizer if model.compiled else None
    if optimizer is None or optimizer is not model.private.optimizer:
        return
    unknown = model.private.unknown_steps(optimizer)
    if unknown > 0:
        raise ValueError(
            f"The optimizer has taken {unknown} step(s) of which the ledger "
            "does not know: `release` or `update` was called from outside, or "
            "its state comes from a file without a ledger. No ε can be stated "
            "for these weights."
        )


def continuity_reasons(model: Any) -> list[str]:
    """Returns whether the optimizer's past is unknown to ledger or noise."""
    optimizer, plan = model.optimizer, model.optimizer.plan
    iterations = int(optimizer.iterations)
    unknown = model.private.unknown_steps(optimizer)
    if unknown > 0:
        return [
            f"The optimizer has taken {unknown} step(s) of which the ledger "
            "does not know: its state comes from a file without a ledger "
            "(`load_weights`, BackupAndRestore, tf.train.Checkpoint), or "
            "`release` or `update` was called from outside. "
            "Resume with `callbacks.Resumable` or `checkpoint.restore`, load "
            "with `keras.saving.load_model`, or compile a new optimizer."
        ]
    if not (plan.noise.correlated and plan.noise_multiplier):
        return []
    if iterations == optimizer.noise_step:
        return []
    return [
        f"The optimizer has taken {iterations} updates, but its {plan.noise} "
        f"stands at step {optimizer.noise_step}: correlated noise can't go on "
        "without its buffers, which released files do not hold. Resume with "
        "`tf_dpadaptive.checkpoint.restore`, or compile a new optimizer."
    ]


def model_stops_at_budget(model: Any) -> bool:
    """Whether `PrivacyBudget` watches this fit and stops it cleanly."""
    return model.private.stops_at_budget


def spent(model: Any, asked: int | None = None) -> BudgetExhausted:
    """Returns the error of a plan without updates left."""
    plan, ledger = model.optimizer.plan, model.private.ledger
    asked_for = "another update" if asked is None else f"{asked} updates"
    return BudgetExhausted(
        f"The plan has num_steps={plan.num_steps} updates, of which "
        f"{ledger.used(plan)} are taken; {asked_for} would pass it. Train "
        "less, add `callbacks.PrivacyBudget()`, which stops in time, or "
        "calibrate a plan with more steps."
    )
