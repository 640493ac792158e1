"""Do the examples of a batch go through an engine each for itself?

Asked at the size of a real batch: a layer may mix examples in large ones only
(experts with a capacity), or give one example the gradient of another (rows
that are sorted and put back), which outputs do not show.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import tensorflow as tf

from tf_dpadaptive.clipping.engine import Chunk
from tf_dpadaptive.clipping.example import ExampleLoss

Norms = dict[int, np.ndarray]
"""Norms (n,) of the examples' gradients, keyed by position of the variable."""


class WrongGradients(RuntimeError):
    """The engine and the reference disagree: training must not go on."""


class NormsOf(Protocol):
    """Runs an engine: norms by variable, and the clipped sum."""

    def __call__(
        self, values: Sequence[tf.Tensor], chunk: Chunk, clip_norm: float
    ) -> tuple[Norms, Norms]:
        """Returns norms and sum."""
        ...


def compare_orders(
    example: ExampleLoss,
    engine: NormsOf,
    values: Sequence[tf.Tensor],
    chunk: Chunk,
    norms: Norms,
    tolerance: float,
) -> None:
    """Raises if norms do not go with their examples into another order."""
    rng = np.random.Generator(np.random.Philox(key=1))
    order = rng.permutation(int(chunk.real.shape[0]))
    moved, _ = engine(values, take(chunk, order), 1.0)
    before = {i: n[order] for i, n in norms.items()}
    _refuse_mixing(
        example,
        moved,
        before,
        tolerance,
        "depends on where in the batch its example is",
    )


def compare_neighbours(
    example: ExampleLoss,
    engine: NormsOf,
    values: Sequence[tf.Tensor],
    chunk: Chunk,
    norms: Norms,
    tolerance: float,
) -> None:
    """Raises if changed examples move the gradients of others."""
    rows = int(chunk.real.shape[0])
    kept = np.arange(1, rows, 2)
    source = np.where(np.arange(rows) % 2, np.arange(rows), 1)
    changed = take(chunk, source)._replace(seeds=chunk.seeds)
    moved, _ = engine(values, changed, 1.0)
    _refuse_mixing(
        example,
        {i: n[kept] for i, n in moved.items()},
        {i: n[kept] for i, n in norms.items()},
        tolerance,
        "for one example changes with another example",
    )


def _refuse_mixing(
    example: ExampleLoss,
    after: Norms,
    before: Norms,
    tolerance: float,
    how: str,
) -> None:
    whole = whole_norms(before)
    for i, norms in before.items():
        same = np.isfinite(after[i]) == np.isfinite(norms)
        finite = np.isfinite(after[i]) & np.isfinite(norms)
        error = np.abs(after[i][finite] - norms[finite])
        # A gradient of rounding errors alone may differ.
        size = np.maximum(norms, 1e-3 * whole)[finite] + 1e-12
        if np.any(~same) or np.any(error > tolerance * size):
            path = example.model.trainable_variables[i].path
            raise WrongGradients(
                "The examples of a batch are mixed: the gradient of "
                f"{path!r} {how}. Such a model can't be trained privately."
            )


def whole_norms(norms: Norms) -> np.ndarray:
    """Returns float64 (n,): norms over all variables."""
    return np.sqrt(sum(np.square(n) for n in norms.values()))


def take(chunk: Chunk, rows: np.ndarray) -> Chunk:
    """Returns these rows of a chunk."""
    return tf.nest.map_structure(lambda t: tf.gather(t, rows), chunk)
