"""The per-layer fallback: per-example gradients of one layer, formed.

The layer is called again on single examples, with the inputs, surroundings and
randomness of the pass, and differentiated with respect to its own weights only,
from the gradient of its outputs. Vectorized over examples where possible.
"""

import math
from typing import Any

import keras
import tensorflow as tf
from keras.src import backend

from tf_dpadaptive.clipping.engine import Chunk
from tf_dpadaptive.clipping.layerwise.chunks import KEPT_FLOATS
from tf_dpadaptive.clipping.layerwise.forms import Deferred, Form, Formed
from tf_dpadaptive.clipping.layerwise.intercept import Unit
from tf_dpadaptive.clipping.layerwise.plan import Plan
from tf_dpadaptive.clipping.layerwise.replay import masks_of
from tf_dpadaptive.clipping.layerwise.rowwise import (
    must_loop,
    over_rows,
    traced,
)


def fallback(
    unit: Unit, position: int, chunk: Chunk, plan: Plan
) -> list[tuple[keras.Variable, Form]]:
    """Returns what the gradients of a unit's variables are made of.

    Args:
        unit: A use of a layer without a rule.
        position: Its place among the units of the pass.
        chunk: The batch.
        plan: Told if the layer's outputs are not one row an example.
    """
    use = unit.use
    count = chunk.real.shape[0]
    if any(t.shape[0] != count for t in use.targets):
        plan.climb(use.layer)
        return []
    replay = _Replay(unit, count, plan, position)
    name = f"{position}:{use.layer.name}"
    try:
        looped = replay.looped(plan, name)
    except (ValueError, TypeError, tf.errors.InvalidArgumentError):
        if plan.settled:
            raise
        plan.climb(use.layer)
        return []
    variables = replay.connected()
    total = sum(math.prod(v.shape) for v in variables)
    if count is not None and count * total <= KEPT_FLOATS:
        values = over_rows(replay, replay.rows, looped=looped)
        return [
            (variable, Formed(tf.cast(value, tf.float32)))
            for variable, value in zip(variables, values, strict=True)
        ]
    return [
        (
            variable,
            Deferred(
                replay.rows,
                lambda rows, i=i: over_rows(replay, rows, looped=looped)[i],
            ),
        )
        for i, variable in enumerate(variables)
    ]


class _Replay:
    """From one example's inputs and output gradients to its gradients."""

    def __init__(
        self, unit: Unit, count: int | None, plan: Plan, position: int
    ) -> None:
        self._unit = unit
        use = unit.use
        self._flat = tf.nest.flatten((use.args, use.kwargs))
        if not plan.settled:
            plan.row_arguments[position] = [
                i
                for i, t in enumerate(self._flat)
                if tf.is_tensor(t) and t.shape.rank and t.shape[0] == count
            ]
        self._rows = plan.row_arguments[position]
        masks = masks_of(self._flat)
        self._given = [g is not None for g in use.gradients]
        self._is_connected: list[bool] = []
        self.rows = (
            [self._flat[i] for i in self._rows],
            {i: m for i, m in masks.items() if i in self._rows},
            [g for g in use.gradients if g is not None],
            dict(unit.surroundings.draws.keys),
        )

    def __call__(self, row: Any) -> list[tf.Tensor]:
        """Returns the gradients of the connected variables."""
        arguments, masks, gradients, seeds = row
        flat = list(self._flat)
        for i, tensor in zip(self._rows, arguments, strict=True):
            flat[i] = tf.expand_dims(tensor, 0)
        for i, mask in masks.items():
            backend.set_keras_mask(flat[i], tf.expand_dims(mask, 0))
        use = self._unit.use
        args, kwargs = tf.nest.pack_sequence_as((use.args, use.kwargs), flat)
        local = {
            id(v): tf.identity(use.values[id(v)]) for v in self._unit.claimed
        }
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(list(local.values()))
            keys = {key: seed[None] for key, seed in seeds.items()}
            with self._unit.surroundings.again(local, keys):
                outputs = self._unit.call(*args, **kwargs)
        targets = [
            t
            for t in tf.nest.flatten(outputs)
            if tf.is_tensor(t) and t.dtype.is_floating
        ]
        chosen = [t for t, g in zip(targets, self._given, strict=True) if g]
        if any(t.shape[0] != 1 for t in chosen):
            raise ValueError(
                f"Layer {use.layer.name!r} does not return one row for one "
                "example."
            )
        found = tape.gradient(
            chosen,
            list(local.values()),
            output_gradients=[tf.expand_dims(g, 0) for g in gradients],
        )
        self._is_connected = [g is not None for g in found]
        return [tf.convert_to_tensor(g) for g in found if g is not None]

    def looped(self, plan: Plan, name: str) -> bool:
        """Whether the replay can't be vectorized."""
        if plan.settled:
            traced(self, self.rows)
        elif must_loop(self, self.rows):
            plan.looped.add(name)
        return name in plan.looped

    def connected(self) -> list[keras.Variable]:
        """The variables that the outputs depend on; after a trace."""
        return [
            v
            for v, c in zip(self._unit.claimed, self._is_connected, strict=True)
            if c
        ]
