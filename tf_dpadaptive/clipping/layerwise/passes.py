"""One forward and one backward pass: losses, and what gradients are made of."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from tf_dpadaptive.batch import Batch
from tf_dpadaptive.clipping.engine import Chunk
from tf_dpadaptive.clipping.example import (
    ExampleLoss,
    keras_masks,
    without_regularizers,
    without_rematerialization,
)
from tf_dpadaptive.clipping.layerwise import gathers
from tf_dpadaptive.clipping.layerwise.fallback import fallback
from tf_dpadaptive.clipping.layerwise.forms import (
    Form,
    VariableGradient,
    merge,
)
from tf_dpadaptive.clipping.layerwise.intercept import Interception, Unit
from tf_dpadaptive.clipping.layerwise.losses import (
    LossOfOutputs,
    OutputLosses,
    float_outputs,
)
from tf_dpadaptive.clipping.layerwise.plan import NotLayerwise, Plan
from tf_dpadaptive.clipping.layerwise.proof import Watched, learn
from tf_dpadaptive.clipping.layerwise.registry import NotCovered
from tf_dpadaptive.clipping.layerwise.rows_apart import refuse_meeting_rows
from tf_dpadaptive.clipping.layerwise.rowwise import must_loop
from tf_dpadaptive.clipping.randomness import Draws, layer_randomness


class Pass(NamedTuple):
    """What a pass over a batch yields.

    Attributes:
        outputs: The model's outputs.
        masks: Their Keras masks, by flat position.
        losses: Per-example losses and counters.
        gradients: Per-example gradients by position of the variable; no
            entry where the loss does not depend on it.
    """

    outputs: Any
    masks: dict[int, tf.Tensor]
    losses: OutputLosses
    gradients: dict[int, VariableGradient]


def run(
    example: ExampleLoss,
    values: Sequence[tf.Tensor],
    chunk: Chunk,
    plan: Plan,
) -> Pass:
    """Runs a batch forward and backward.

    Args:
        example: The model's per-example loss.
        values: The trainable variables' values.
        chunk: The batch.
        plan: Which layers are units. What this pass learns is added to it;
            the result counts only if `plan.changed` is still False.

    Raises:
        NotLayerwise: if the model can't be handled layer by layer.
    """
    model = example.model
    variables = model.trainable_variables
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        watched = Watched(tape, variables, values)
        mapping = zip(variables, values, strict=True)
        draws = Draws.of(
            list(zip(example.seed_states, chunk.seeds, strict=True))
        )
        with (
            without_regularizers(model),
            without_rematerialization(model),
            layer_randomness(draws),
            keras.StatelessScope(mapping, collect_losses=True) as scope,
            Interception(model, scope, plan, tape) as seen,
        ):
            inputs = Batch(*chunk.batch).x
            if model._call_has_training_arg:
                outputs = model(inputs, training=True)
            else:
                outputs = model(inputs)
    if seen.refusal:
        raise NotLayerwise(seen.refusal)
    if not plan.settled and chunk.real.shape[0] is not None:
        refuse_meeting_rows(
            [*tf.nest.flatten(inputs), *seen.texts],
            tf.nest.flatten(outputs),
            chunk.real.shape[0],
        )
    if scope.losses:
        raise NotLayerwise(
            f"{len(scope.losses)} `add_loss` call(s) or activity "
            f"regularizer(s) in the forward pass of {model.name!r}."
        )
    masks = keras_masks(outputs)
    # Padding has gradients too: they touch no other row, and count nothing.
    losses = _losses(example, values, outputs, masks, chunk, plan, draws)
    targets = [t for unit in seen.units for t in unit.use.targets]
    with gathers.apart():
        gradients = tape.gradient(
            float_outputs(outputs),
            [*targets, *watched.sources],
            output_gradients=[
                tf.zeros_like(t) if g is None else g
                for t, g in zip(
                    float_outputs(outputs), losses.gradients, strict=True
                )
            ],
        )
    learn(plan, model, watched.leaks(gradients[len(targets) :]), seen.reads)
    forms = _forms(seen.units, gradients[: len(targets)], chunk, plan)
    return Pass(
        outputs,
        masks,
        losses,
        {
            i: merge(v.shape, forms[id(v)])
            for i, v in enumerate(variables)
            if id(v) in forms
        },
    )


def _losses(
    example: ExampleLoss,
    values: Sequence[tf.Tensor],
    outputs: Any,
    masks: dict[int, tf.Tensor],
    chunk: Chunk,
    plan: Plan,
    draws: Draws,
) -> OutputLosses:
    """The per-example losses; refuses a loss that reads weights."""
    loss = LossOfOutputs(example, values, outputs, masks, chunk, draws)
    if not plan.settled and must_loop(loss, loss.rows):
        plan.looped.add("loss")
    losses = loss.all_rows(looped="loss" in plan.looped)
    if loss.used:
        paths = [
            example.model.trainable_variables[i].path for i in sorted(loss.used)
        ]
        raise NotLayerwise(
            f"The loss of {example.model.name!r} uses the variables {paths}."
        )
    return losses


def _forms(
    units: Sequence[Unit],
    gradients: Sequence[tf.Tensor | None],
    chunk: Chunk,
    plan: Plan,
) -> dict[int, list[Form]]:
    """What each variable's gradient is made of, by `id` of the variable."""
    forms: dict[int, list[Form]] = {}
    left = iter(gradients)
    for position, unit in enumerate(units):
        use = unit.use
        use.gradients = [next(left) for _ in use.targets]
        if all(g is None for g in use.gradients):
            continue
        if unit.rule is None:
            pairs = fallback(unit, position, chunk, plan)
        else:
            pairs = _by_rule(unit, chunk, plan)
        for variable, form in pairs:
            if any(variable is v for v in unit.claimed):
                forms.setdefault(id(variable), []).append(form)
    return forms


def _by_rule(
    unit: Unit, chunk: Chunk, plan: Plan
) -> list[tuple[keras.Variable, Form]]:
    """The forms of a unit with a rule; none if the rule does not hold."""
    use, rows = unit.use, chunk.real.shape[0]
    rule: Any = unit.rule
    reason = None
    pairs = []
    if len(use.targets) != 1 and not rule.whole:
        reason = f"its rule found {len(use.targets)} places to look at"
    elif {t.shape[0] for t in (use.inputs, *use.targets)} != {rows}:
        plan.climb(use.layer)
        return []
    else:
        try:
            pairs = list(rule.function(use))
        except NotCovered as error:
            reason = str(error)
        else:
            given = {id(variable) for variable, _ in pairs}
            missed = [
                v.path for v in unit.claimed if id(v) in unit.read - given
            ]
            if missed:
                reason = f"its rule does not cover {missed}"
    if reason is not None:
        for variable in unit.claimed:
            plan.fall_back(use.layer, variable, reason)
        return []
    return pairs
