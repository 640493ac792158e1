"""Drives an optimizer on given per-example gradients, without a model.

The clip, the releases, the noise (replayed), the rule and Keras' apply are the
package's own; only the gradients come from a table.
"""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_dpadaptive.clipping.clip import clip_and_sum
from tf_dpadaptive.optimizers import DPOptimizer

Arrays = Sequence[np.ndarray]


class Replay:
    """A noise stream that yields rows from a table."""

    buffers = ()

    def __init__(self) -> None:
        self.row: Any = None

    def next(self, step: tf.Tensor) -> list[tf.Tensor]:
        return [tf.constant(part, tf.float32) for part in self.row]


class Bench:
    """An optimizer on variables of its own.

    `replayed=False` leaves it the noise of its plan and its own keys.
    """

    def __init__(
        self,
        optimizer: DPOptimizer,
        params: Arrays,
        dtype: str = "float32",
        *,
        replayed: bool = True,
    ) -> None:
        self.optimizer = optimizer
        self.variables = [
            keras.Variable(p, dtype=dtype, name=f"v{i}")
            for i, p in enumerate(params)
        ]
        optimizer.build(self.variables)
        self.replay = [Replay() for _ in range(optimizer.num_releases)]
        if replayed:
            optimizer._streams = tuple(self.replay)

    def releases(self, per_example: Arrays, mask: np.ndarray) -> Any:
        """Raw releases of a batch, and the geometry they are in."""
        optimizer = self.optimizer
        geometry = optimizer.geometry()
        total, _ = clip_and_sum(
            {i: tf.constant(g, tf.float32) for i, g in enumerate(per_example)},
            tf.constant(mask),
            optimizer.clip_norm(),
            geometry,
        )
        mean = {i: s / optimizer.batch_size for i, s in total.items()}
        return optimizer.releases(mean), total, geometry

    def step(
        self,
        per_example: Arrays,
        mask: np.ndarray,
        noise: Sequence[Arrays],
        public: Arrays | None = None,
    ) -> list[np.ndarray]:
        """Takes one update; returns the new parameters."""
        optimizer = self.optimizer
        for stream, row in zip(self.replay, noise, strict=False):
            stream.row = row
        if public is not None:
            optimizer._public = {
                i: tf.constant(h, tf.float32) for i, h in enumerate(public)
            }
        _, total, geometry = self.releases(per_example, mask)
        optimizer.update(optimizer.release(total), geometry, {})
        return self.parameters()

    def estimates(self, total: Arrays) -> list[np.ndarray]:
        """Takes an update with the optimizer's noise; what `rule` sees of it.

        Args:
            total: Clipped sums in the geometry's coordinates, one a variable.

        Returns:
            One flat vector a release, in mean space: un-scaled and centred.
        """
        optimizer, rule = self.optimizer, self.optimizer.rule
        seen: list[list[np.ndarray]] = [[] for _ in optimizer._streams]

        def spy(learning_rate: Any, t: Any, *args: Any) -> Any:
            for kept, value in zip(seen, args, strict=False):
                kept.append(keras.ops.convert_to_numpy(value))
            return rule(learning_rate, t, *args)

        geometry = optimizer.geometry()
        sums = {i: tf.constant(s, tf.float32) for i, s in enumerate(total)}
        optimizer.rule = spy
        try:
            optimizer.update(optimizer.release(sums), geometry, {})
        finally:
            del optimizer.rule
        return [flat(kept) for kept in seen]

    def parameters(self) -> list[np.ndarray]:
        return [keras.ops.convert_to_numpy(v) for v in self.variables]

    def state(self) -> list[np.ndarray]:
        """Every number that outlives the step."""
        return [
            np.array(keras.ops.convert_to_numpy(v), np.float64)
            for v in [*self.variables, *self.optimizer.variables]
        ]


def distance(one: Sequence[Any], other: Sequence[Any]) -> float:
    """How far apart two batches' releases are, in units of their sensitivity.

    Releases of one step together: √(Σ_k ‖Δ_k‖²/S_k²), which is at most 1 where
    each is noised with σ·S_k and the step is charged one Gaussian of σ. Raw
    releases, of baselines, are left out.
    """
    moved = 0.0
    for a, b in zip(one, other, strict=True):
        if a.sensitivity is None:
            continue
        gap = flat(list(a.values.values())) - flat(list(b.values.values()))
        moved += np.sum(gap**2) / float(a.sensitivity) ** 2
    return float(np.sqrt(moved))


def flat(arrays: Arrays) -> np.ndarray:
    """All arrays as one vector."""
    return np.concatenate([np.ravel(np.asarray(a, np.float64)) for a in arrays])
