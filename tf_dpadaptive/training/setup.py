"""What a privatized model keeps beside Keras' own state."""

import dataclasses
import functools
import logging
import math
from typing import Any

import keras
import tensorflow as tf

from tf_dpadaptive import _validate
from tf_dpadaptive.accounting.ledger import Ledger
from tf_dpadaptive.batch import Batch
from tf_dpadaptive.clipping.choose import CLIPPING_MODES, choose_engine
from tf_dpadaptive.clipping.engine import (
    Chunk,
    ClippedSum,
    Engine,
    in_chunks,
)
from tf_dpadaptive.clipping.example import ExampleLoss
from tf_dpadaptive.clipping.geometry import Geometry
from tf_dpadaptive.clipping.mixing import mixing_reasons
from tf_dpadaptive.clipping.probe import Probe, probe, row_specs
from tf_dpadaptive.training import checks, feeding
from tf_dpadaptive.training.metric_writes import metric_reasons

logger = logging.getLogger("tf_dpadaptive")


@dataclasses.dataclass(frozen=True)
class StepSetup:
    """The prepared engine for data of one shape.

    Attributes:
        specs: Shapes of one row, for which this was prepared.
        engine: The clipping engine.
        example: The per-example loss.
        probe: What the trace of one example showed.
        rows_at_once: Rows that the engine holds at once; None for all.
    """

    specs: Any
    engine: Engine
    example: ExampleLoss
    probe: Probe
    rows_at_once: int | None

    @functools.cached_property
    def clipped_sum(self) -> Any:
        """The engine over all rows, as one traced function.

        Also in eager mode: Python code of a layer then runs once, on symbols,
        and not once an example, where it could keep one for the next.
        """
        shown = _shows_outputs(self.example.model)

        def clipped_sum(
            values: Any, chunk: Chunk, clip_norm: Any, geometry: Geometry
        ) -> ClippedSum:
            def work(piece: Chunk) -> ClippedSum:
                done = self.engine.clipped_sum(
                    values, piece, clip_norm, geometry
                )
                # Those of all pieces together may take more than the rest.
                return done if shown else done._replace(outputs=(), masks={})

            return in_chunks(work, chunk, self.rows_at_once)

        return tf.function(clipped_sum, autograph=False, reduce_retracing=True)


class PrivateState:
    """Options and history of a privatized model; plain Python on purpose.

    Attributes:
        clipping: `"auto"`, `"vectorized"` or `"sequential"`.
        microbatch_size: Rows held at once, or None.
        self_check: Whether the engine is compared with the reference on the
            first batch.
        ledger: What really ran.
        setup: The prepared step, or None.
        mixing: Why the model mixes examples; None if not tried out yet.
        checked: Shapes of rows for which that was done since `compile`.
        checking: Whether data that Keras looks at is that of an update.
        stepping: Whether the train function runs, which books what it does.
        fitting: Whether a fit runs.
        stops_at_budget: Whether `PrivacyBudget` watches the running fit.
        sampler: What samples the batches of the running fit; None where
            nobody knows.
        optimizer: What `compile` was given.
        past: Steps of the optimizer and updates in the ledger when they last
            were known to belong together.
        diagnostics: Whether steps show `nonprivate/` numbers in their logs.
    """

    def __init__(
        self,
        clipping: str = "auto",
        microbatch_size: int | None = None,
        self_check: bool = True,
    ) -> None:
        _validate.one_of(CLIPPING_MODES, clipping=clipping)
        if microbatch_size is not None:
            _validate.positive_integer(microbatch_size=microbatch_size)
        self.clipping = clipping
        self.microbatch_size = microbatch_size
        self.self_check = bool(self_check)
        self.ledger = Ledger()
        self.setup: StepSetup | None = None
        self.mixing: list[str] | None = None
        self.checked: set[str] = set()
        self.checking = False
        self.stepping = False
        self.fitting = False
        self.stops_at_budget = False
        self.sampler: Any = None
        self.optimizer: Any = None
        self.past = (0, 0)
        self.diagnostics = False

    def settle_past(self, optimizer: Any) -> None:
        """Takes optimizer and ledger as they stand for one another's.

        Args:
            optimizer: The optimizer; None where its steps may lie anywhere in
                the ledger.
        """
        self.past = (0, 0)
        if optimizer is not None:
            self.past = (_steps(optimizer), self.ledger.updates)

    def unknown_steps(self, optimizer: Any) -> int:
        """Steps of the optimizer that the ledger has not booked, if > 0."""
        steps, updates = _steps(optimizer), self.ledger.updates
        since = (steps - self.past[0]) - (updates - self.past[1])
        return max(steps - updates, since)

    def follow(self, sampler: Any) -> None:
        """Goes on with the run's order of sampling, where it stands.

        Parts and order belong to the optimizer's run: a sampler made anew, or
        led elsewhere by another model, takes up those that it has followed.

        Args:
            sampler: `sampling.origin` of the data of a fit.
        """
        fresh = {**sampler.state(), "position": 0}
        place = self.optimizer.sampling
        if place.order is None or place.order["scheme"] != fresh["scheme"]:
            place.order = fresh
        sampler.load(place.order)
        sampler.seek(place.order["position"])
        self.sampler = sampler

    def book(self, optimizer: Any, updates: int) -> None:
        """Books updates that were taken, and moves the sampling on."""
        verified = self.sampler is not None
        if not verified and self.ledger.verified:
            logger.warning(
                "SAMPLING NOT VERIFIED: the batches do not come from "
                "`plan.batches`. ε holds only if they were sampled as the plan "
                "says (sampling=%r).",
                optimizer.plan.sampling,
            )
        self.ledger.book(optimizer, updates, verified=verified)
        order = optimizer.sampling.order
        if self.sampler is not None and order is not None:
            order["position"] += updates
            self.sampler.seek(order["position"])

    def prepare(self, model: keras.Model, batch: Batch) -> None:
        """Builds what is unbuilt, checks the model, chooses the engine.

        Runs while the step is traced (or before each eager step); nothing is
        trained before every check has passed.
        """
        specs = row_specs(batch)
        if (
            self.setup is not None
            and model.optimizer.built
            and _same(self.setup.specs, specs)
            and self.setup.example.seeds_are_current()
        ):
            return
        feeding.check_targets(model, batch)
        # Outside of the trace: were the first one to fail, variables made in it
        # would stay without values, and the next fit would read them.
        with tf.init_scope():
            model._symbolic_build(
                data_batch=(batch.x, batch.y, batch.sample_weight)
            )
        found = probe(model, batch)
        reasons = [*checks.model_reasons(model), *found.refusals]
        reasons += checks.penalty_reasons(model)
        if self.mixing is None:
            self.mixing = mixing_reasons(model, batch)
        reasons += self.mixing
        if not reasons:
            reasons += metric_reasons(model, batch, _shows_outputs(model))
        checks.raise_all(reasons, "This model")
        example = ExampleLoss(model, found.counters)
        engine = choose_engine(self.clipping, example, found, batch)
        self.setup = StepSetup(
            specs, engine, example, found, self._rows_at_once(model, engine)
        )

    def _rows_at_once(self, model: keras.Model, engine: Engine) -> int | None:
        """Rows a piece; None where no batch has more (pieces are padded)."""
        rows = self.microbatch_size
        if rows is None and engine.name == "vectorized":
            parameters = sum(
                math.prod(v.shape) for v in model.trainable_variables
            )
            rows = max(1, _VECTORIZED_BYTES // (4 * max(1, parameters)))
        if rows is None or rows >= model.optimizer.plan.max_batch_size:
            return None
        return rows


def _steps(optimizer: Any) -> int:
    return max(int(optimizer.iterations), optimizer.noise_step)


def _shows_outputs(model: Any) -> bool:
    """Whether a metric of `fit` reads the model's outputs."""
    plain = type(model).compute_metrics is keras.Model.compute_metrics
    compiled = model._compile_metrics
    given = compiled is not None and (
        compiled._user_metrics or compiled._user_weighted_metrics
    )
    return bool(given) or not plain


#: Bytes of per-example gradients that the vectorized engine holds by default.
_VECTORIZED_BYTES = 2**29


def _same(one: Any, other: Any) -> bool:
    try:
        tf.nest.assert_same_structure(one, other)
    except (ValueError, TypeError):
        return False
    return tf.nest.flatten(one) == tf.nest.flatten(other)
