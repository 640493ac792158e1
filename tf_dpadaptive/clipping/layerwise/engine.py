"""The layer-wise engine: one batched forward, one backward, one weighted pass.

The backward pass ends at the outputs of the layers that own weights. Their
inputs and output gradients give the norm of every example's gradient, and then,
weighted by the clip factors, the clipped sum, without a second backward pass
and without the gradients of all examples ever being stored.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_dpadaptive.clipping.clip import clip_factors
from tf_dpadaptive.clipping.engine import Chunk, ClippedSum
from tf_dpadaptive.clipping.example import ExampleLoss
from tf_dpadaptive.clipping.geometry import Geometry
from tf_dpadaptive.clipping.layerwise import passes
from tf_dpadaptive.clipping.layerwise.norms import settle, squared_norms
from tf_dpadaptive.clipping.layerwise.plan import NotLayerwise, Plan
from tf_dpadaptive.clipping.layerwise.products import (
    Local,
    matmul_rounding,
)
from tf_dpadaptive.clipping.layerwise.rows_apart import PROBED_ROWS
from tf_dpadaptive.clipping.layerwise.sums import (
    rows_of,
    select,
    weighted_sum,
)

_MOST_PASSES = 20


class LayerwiseEngine:
    """Clips all examples of a chunk at once, layer by layer.

    Args:
        example: The per-example loss of a built and compiled model.
    """

    name = "layerwise"

    def __init__(self, example: ExampleLoss) -> None:
        self._example = example
        self._plans: dict[Any, Plan] = {}

    def plan(self, chunk: Chunk) -> Plan:
        """Returns which layers go by a rule and which fall back.

        Args:
            chunk: A batch, or its shapes and dtypes.

        Raises:
            NotLayerwise: if the model can't be handled layer by layer; the
                message names the layer or variable.
        """
        key = _signature(chunk, None)
        if key not in self._plans:
            self._plans[key] = self._make_plan(chunk)
        return self._plans[key]

    def fallback_layers(self, chunk: Chunk) -> dict[Any, list[str]]:
        """Returns the layers without a rule of their own, and why.

        Args:
            chunk: A batch, or its shapes and dtypes.
        """
        plan = self.plan(chunk)
        return {
            layer: sorted(set(plan.fallbacks[id(layer)].values()))
            for layer in self._example.model._flatten_layers()
            if id(layer) in plan.fallbacks
        }

    def clipped_sum(
        self,
        values: Sequence[tf.Tensor],
        chunk: Chunk,
        clip_norm: tf.Tensor | float,
        geometry: Geometry,
    ) -> ClippedSum:
        """See `Engine.clipped_sum`."""
        return self.norms_and_sum(values, chunk, clip_norm, geometry)[1]

    def norms_and_sum(
        self,
        values: Sequence[tf.Tensor],
        chunk: Chunk,
        clip_norm: tf.Tensor | float,
        geometry: Geometry,
    ) -> tuple[dict[int, tf.Tensor], ClippedSum]:
        """Returns each variable's squared norms, float32 (n,), and the sum.

        See `Engine.clipped_sum` for the arguments.
        """
        done = self._run(values, chunk, self.plan(chunk))
        locals_ = {i: self._local(i, geometry) for i in done.gradients}
        gradients = {
            i: settle(g, locals_[i]) for i, g in done.gradients.items()
        }
        squares = {
            i: squared_norms(g, locals_[i]) for i, g in gradients.items()
        }
        norms = tf.sqrt(tf.add_n(list(squares.values())))
        factors = clip_factors(
            norms * (1 + matmul_rounding()), chunk.real, clip_norm
        )
        clean = select(list(gradients.values()), tf.math.is_finite(norms))
        total = {}
        for i, gradient in zip(gradients, clean, strict=True):
            summed = weighted_sum(gradient, factors)
            scale, centre = locals_[i]
            if centre is not None:
                summed = summed - tf.reduce_sum(factors) * centre
            total[i] = summed if scale is None else summed * scale
        return squares, ClippedSum(
            total,
            norms,
            done.losses.losses,
            done.outputs,
            done.masks,
            [
                tf.reduce_sum(rows_of(chunk.real, c), 0)
                for c in done.losses.counters
            ],
        )

    def _run(
        self, values: Sequence[tf.Tensor], chunk: Chunk, plan: Plan
    ) -> passes.Pass:
        done = passes.run(self._example, values, chunk, plan)
        if plan.changed:
            raise NotLayerwise(
                "A layer behaves otherwise than in the trial pass."
            )
        return done

    def _local(self, index: int, geometry: Geometry) -> Local:
        """The geometry of one variable, broadcast to its shape."""
        shape = self._example.model.trainable_variables[index].shape

        def full(tensors: Sequence[tf.Tensor] | None) -> tf.Tensor | None:
            if tensors is None:
                return None
            return tf.broadcast_to(tf.cast(tensors[index], tf.float32), shape)

        return Local(full(geometry.scale), full(geometry.centre))

    def _make_plan(self, chunk: Chunk) -> Plan:
        """Runs trial passes on shapes alone until nothing new is learnt."""
        rows = chunk.real.shape[0]
        try:
            return self._trial(_signature(chunk, PROBED_ROWS))
        except NotLayerwise:
            raise
        except (ValueError, TypeError, tf.errors.InvalidArgumentError):
            if rows is None:
                raise
        return self._trial(_signature(chunk, rows))  # a fixed batch size

    def _trial(self, signature: Chunk) -> Plan:
        plan = Plan.start(self._example.model)
        values = [
            tf.TensorSpec(v.shape, v.dtype)
            for v in self._example.model.trainable_variables
        ]

        def one(values: Sequence[tf.Tensor], chunk: Chunk) -> list[tf.Tensor]:
            return [
                passes.run(self._example, values, chunk, plan).losses.losses
            ]

        for _ in range(_MOST_PASSES):
            plan.changed = False
            plan.row_arguments.clear()
            tf.function(one, autograph=False).get_concrete_function(
                values, signature
            )
            if not plan.changed:
                plan.settled = True
                return plan
        raise NotLayerwise(
            f"No way to handle {self._example.model.name!r} layer by layer "
            f"was found in {_MOST_PASSES} trials."
        )


def _signature(chunk: Chunk, rows: int | None) -> Any:
    """Shapes and dtypes of a chunk with `rows` examples.

    Hashable when `rows` is None, a `Chunk` otherwise.
    """
    specs = tf.nest.map_structure(
        lambda t: tf.TensorSpec([rows, *t.shape[1:]], t.dtype), chunk
    )
    if rows is not None:
        return specs
    return tuple(tf.nest.flatten(specs, expand_composites=False))
