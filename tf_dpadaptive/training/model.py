"""Keras' trainer, with a private step in the place of the plain one."""

import inspect
from typing import Any

import tensorflow as tf
from keras.src.utils.tracking import no_automatic_dependency_tracking

from tf_dpadaptive.accounting.ledger import Ledger
from tf_dpadaptive.batch import Batch
from tf_dpadaptive.data import sampling
from tf_dpadaptive.training import (
    budget,
    checks,
    class_weights,
    diagnostics,
    feeding,
    first_batch,
    shown,
)
from tf_dpadaptive.training.preprocessing import PrivatePreprocessing
from tf_dpadaptive.training.saved import PrivateSaving
from tf_dpadaptive.training.setup import PrivateState
from tf_dpadaptive.training.step import private_step


class PrivateTraining(PrivateSaving):
    """Mixin before a Keras model class; see `privatize`."""

    #: Marks classes whose methods are the package's own (see `checks`).
    private_training = True

    # ---- what the model keeps ---------------------------------------------

    @property
    def private(self) -> PrivateState:
        """Options and history of private training."""
        state = self.__dict__.get("_private_state")
        if state is None:
            state = PrivateState()
            self._keep(state)
        return state

    @no_automatic_dependency_tracking
    def _keep(self, state: PrivateState) -> None:
        self._private_state = state

    @property
    def ledger(self) -> Ledger:
        """What really ran on this model."""
        return self.private.ledger

    def epsilon(self, delta: float | None = None) -> float:
        """Returns ε of everything that ran; see `Ledger.epsilon`.

        Raises:
            ValueError: if the optimizer has done more than the ledger knows.
        """
        budget.check_past(self)
        return self.ledger.epsilon(delta)

    def privacy_statement(self, delta: float | None = None) -> str:
        """Returns in words what may be said of this model's privacy.

        Raises:
            ValueError: if the optimizer has done more than the ledger knows.
        """
        budget.check_past(self)
        return self.ledger.statement(delta)

    # ---- compile -----------------------------------------------------------

    def compile(self, optimizer: Any = None, *args: Any, **kwargs: Any) -> None:
        """Compiles with a DP optimizer; otherwise as `keras.Model.compile`.

        Args:
            optimizer: A `DPOptimizer`.
            *args: As in Keras.
            **kwargs: As in Keras; loss scaling stays off.

        Raises:
            ValueError: if optimizer or model would break the guarantee; all
                reasons at once.
        """
        reasons = checks.optimizer_reasons(optimizer)
        if not reasons:
            reasons += checks.accounting_reasons(optimizer.plan)
            reasons += checks.adjacency_reasons(self.ledger, optimizer.plan)
        reasons += checks.model_reasons(self)
        if kwargs.get("auto_scale_loss"):
            reasons.append(
                "`auto_scale_loss=True`: the private clip must see unscaled "
                "gradients."
            )
        checks.raise_all(reasons, "This compile")
        kwargs["auto_scale_loss"] = False
        super().compile(optimizer, *args, **kwargs)  # type: ignore[misc]
        state = self.private
        state.setup = state.mixing = None
        state.checked = set()
        again = state.optimizer is optimizer
        state.optimizer = optimizer
        # A loaded optimizer's steps, which its ledger knows, are yet to come.
        fresh = not optimizer.ledger.updates
        state.ledger.merge(optimizer.ledger)
        optimizer.ledger = state.ledger
        if not again:
            state.settle_past(optimizer if fresh else None)

    # ---- training ----------------------------------------------------------

    def train_step(self, data: Any) -> dict[str, Any]:
        """Takes one private update; see `private_step`."""
        if not self.private.stepping:
            raise RuntimeError(
                "`train_step` was called outside of `fit` and "
                "`train_on_batch`: its update would not be booked, and the "
                "ε of the ledger would be too small. Call `train_on_batch`."
            )
        batch = feeding.as_batch(data)
        within = feeding.rows_within(batch, self.optimizer.plan)
        self.private.prepare(self, batch)
        with tf.control_dependencies([] if within is None else [within]):
            if batch.padding is not None and not self.jit_compile:
                batch = feeding.without_padding(batch)
            return private_step(self, batch)

    def test_step(self, data: Any) -> dict[str, Any]:
        """Evaluates one batch; padding of `plan.batches` does not count."""
        if not isinstance(data, Batch):
            return super().test_step(data)  # type: ignore[misc]
        if data.padding is None:
            return super().test_step(data[:3])  # type: ignore[misc]
        if self.jit_compile:
            raise ValueError(
                "Evaluating on batches of `plan.batches` does not work with "
                "`jit_compile=True`. Pass the arrays themselves."
            )
        rows = shown.only_rows(data, data.real())
        return super().test_step(  # type: ignore[misc]
            (rows.x, rows.y, rows.sample_weight)
        )

    def make_train_function(self, force: bool = False) -> Any:
        """Makes Keras' train function and puts the budget in front of it."""
        kept = self.train_function
        ours = isinstance(kept, budget.TrainFunction)
        if ours and not force and kept.optimizer is self.optimizer:
            return kept
        self.train_function = None
        super().make_train_function(force=True)  # type: ignore[misc]
        plain: Any = self.train_function
        self.train_function = budget.TrainFunction(self, plain)
        return self.train_function

    def _maybe_symbolic_build(
        self, iterator: Any = None, data_batch: Any = None
    ) -> None:
        """Looks at the first batch, where Keras itself would do so."""
        super()._maybe_symbolic_build(  # type: ignore[misc]
            iterator=iterator, data_batch=data_batch
        )
        if not self.private.checking:
            return
        self.private.checking = False
        if data_batch is not None:
            first_batch.check_engine(self, [data_batch])
        else:
            elements = (e for _, _, piece in iterator for e in piece)
            first_batch.check_engine(self, elements)

    def fit(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Trains privately; arguments and result as `keras.Model.fit`.

        Args:
            x: `plan.batches(...)`, whose sampling ε covers; or other data,
                booked as *sampling not verified*.
            y: Targets, where `x` is arrays.
            batch_size: Rows a batch for arrays; default B.
            *args: As in Keras, in its order.
            **kwargs: As in Keras. `class_weight` works beside
                `sample_weight`.

        Raises:
            BudgetExhausted: if more updates are asked for than the plan has
                left and no `PrivacyBudget` stops the training in time.
            ValueError: if the guarantee would break; nothing has changed then.
        """
        names = list(inspect.signature(super().fit).parameters)[3:]
        kwargs |= dict(zip(names, args, strict=False))
        self._check_compiled("fit")
        if self.private.fitting:
            raise RuntimeError(
                "`fit` was called inside of a running `fit` of the same model "
                "(by a callback?): its updates would be booked as those of "
                "the outer one. Call it afterwards, or use `train_on_batch`."
            )
        budget.before_updates(self)
        state, plan = self.private, self.optimizer.plan
        feeding.check_present(x, y, kwargs.get("sample_weight"))
        sampler = sampling.origin(x)
        checks.raise_all(feeding.plan_reasons(sampler, plan), "This data")
        if sampler is None:
            split = kwargs.get("validation_split")
            feeding.check_examples(x, plan, split)
            x, batch_size = feeding.checked_batches(x, batch_size, plan)
        if (
            isinstance(x, tf.data.Dataset)
            or inspect.isgenerator(x)
            or isinstance(self, PrivatePreprocessing)
        ):
            # Keras warns of its own default, which such data do not heed
            # (and keras-hub makes datasets of arrays).
            kwargs.setdefault("shuffle", False)
        x, kwargs = class_weights.fold_arguments(x, y, kwargs)
        epochs = kwargs.pop("epochs", 1)
        epochs = self._within_budget(x, batch_size, epochs, kwargs)
        first, x = first_batch.peeked(x)
        try:
            state.fitting = True
            if sampler is not None:
                state.follow(sampler)
            if first is not None:
                first_batch.check_engine(self, [first])
            state.checking = True
            with feeding.named_if_too_large(plan):
                return super().fit(  # type: ignore[misc]
                    x=x, y=y, batch_size=batch_size, epochs=epochs, **kwargs
                )
        finally:
            state.sampler, state.stops_at_budget = None, False
            state.checking = state.fitting = False
            diagnostics.switch(self, False)
            # A callback that restores may have set it and never been ended.
            self._initial_epoch = None

    def train_on_batch(
        self,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        class_weight: Any = None,
        return_dict: bool = False,
    ) -> Any:
        """Takes one private update; booked as *sampling not verified*.

        Args:
            x: Inputs of one batch, or a `Batch`.
            y: Targets.
            sample_weight: Weights of the loss.
            class_weight: Weights of the classes; works beside
                `sample_weight`.
            return_dict: As in Keras.
        """
        self._check_compiled("train_on_batch")
        budget.before_updates(self)
        feeding.check_present(x, y, sample_weight)
        feeding.check_rows(
            len(tf.nest.flatten(x)[0]),
            self.optimizer.plan,
            padded=isinstance(x, Batch) and x.padding is not None,
        )
        x, sample_weight = class_weights.fold_class_weight(
            x, y, sample_weight, class_weight
        )
        sampler, self.private.sampler = self.private.sampler, None
        self.private.checking = True
        try:
            return super().train_on_batch(  # type: ignore[misc]
                x, y, sample_weight, return_dict=return_dict
            )
        finally:
            self.private.sampler = sampler
            self.private.checking = False

    def _check_compiled(self, method: str) -> None:
        if not self.compiled:
            raise ValueError(
                f"`{method}` needs a compiled model. Call `compile` with a DP "
                "optimizer; `privatize` drops an earlier compile."
            )

    def _within_budget(
        self, x: Any, batch_size: int | None, epochs: int, kwargs: Any
    ) -> int:
        """Raises early where it is known that the plan will not suffice."""
        callbacks = kwargs.get("callbacks") or []
        if not isinstance(callbacks, (list, tuple)):
            callbacks = getattr(callbacks, "callbacks", [callbacks])
        stops = any(getattr(c, "stops_at_budget", False) for c in callbacks)
        resumes = any(getattr(c, "resumes", False) for c in callbacks)
        self.private.stops_at_budget = stops
        left = self.ledger.remaining(self.optimizer.plan)
        if left is None or resumes:
            return epochs
        first = kwargs.get("initial_epoch", 0)
        if stops:
            return epochs if left else first
        steps = kwargs.get("steps_per_epoch") or feeding.updates_of_a_pass(
            x, batch_size, kwargs
        )
        if steps is not None and steps * (epochs - first) > left:
            raise budget.spent(self, steps * (epochs - first))
        return epochs
