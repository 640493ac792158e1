"""The second half of a step: from clipped sums to new weights.

It is a dozen passes over vectors as long as the weights. In graph mode on a
CPU, where every operation is a pass of its own, XLA compiles it into a few;
with large layers and small batches that saves a fifth of a step.
"""

import math
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tf_dpadaptive.clipping.geometry import Geometry

_COMPILED_FROM = 2**16
"""Parameters from which compiling pays."""

_MOST_VARIABLES = 16
"""Compiling takes a fifth of a second for each; models of many layers spend
their time elsewhere."""


def finish(
    model: Any,
    clipped_sum: Mapping[int, tf.Tensor],
    geometry: Geometry,
    penalties: Mapping[int, tf.Tensor],
) -> None:
    """Adds the noise of one update and updates the weights.

    Args:
        model: A privatized, compiled, built model.
        clipped_sum: Raw sums of clipped contributions, by position.
        geometry: The geometry that the clip used.
        penalties: Gradients of data-free regularisers, by position.

    Privacy: one call of `optimizer.release`; the update sees nothing else of
        the data.
    """
    optimizer = model.optimizer

    def work(
        total: Any, noises: Any, geometry: Geometry, penalties: Any
    ) -> None:
        released = optimizer.release(total, noises)
        # ═══════ privacy boundary: the update sees `released` alone ═════════
        optimizer.update(released, geometry, penalties)

    compiled = _compiling_pays(model)
    noises = None
    if not compiled or optimizer.plan.noise.correlated:
        # Buffers may take gigabytes, which XLA would copy.
        noises = optimizer.next_noise()
    if compiled:
        work = tf.function(work, jit_compile=True, autograph=False)
    work(dict(clipped_sum), noises, geometry, dict(penalties))


def _compiling_pays(model: Any) -> bool:
    """Whether XLA is sure to compile this model's update, and worth it."""
    if model.jit_compile or not tf.inside_function():
        return False
    if any(d.device_type != "CPU" for d in tf.config.list_physical_devices()):
        return False
    optimizer, variables = model.optimizer, model.trainable_variables
    if not optimizer.elementwise or len(variables) > _MOST_VARIABLES:
        return False
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    # Code of others may hold what XLA can't compile.
    parts = [optimizer, inner, inner._learning_rate]
    parts += [v.constraint for v in variables]
    if not all(part is None or _ours_or_keras(part) for part in parts):
        return False
    return sum(math.prod(v.shape) for v in variables) >= _COMPILED_FROM


def _ours_or_keras(part: Any) -> bool:
    module = getattr(type(part), "__module__", "")
    return module.split(".")[0] in {"tf_dpadaptive", "keras"}
