r"""Tree aggregation: noise on the nodes of a binary tree over the steps.

The noise of a prefix sum is that of the nodes that make it up, one for each bit
of its length; the noise of a step is that of its prefix minus that of the
prefix before. With Honaker's one-sided estimate a node averages its own noise
with that of its children, weighted by precision p (p = 1 for a leaf):

    E = (fresh + (p - 1)(E_left + E_right)) / p,
    p = 1 + 1/(1/p_left + 1/p_right),

which for complete subtrees of height h is S/(2 - 2^-h), with
S = fresh + (S_left + S_right)/2.

One Gaussian a step is enough. A prefix holds left children only, and one of
those is finished by each step t; the nodes that end at t (its right spine, all
fresh) enter E only together, as one Gaussian. So noise = C⁻¹z with an n × n
lower-triangular C⁻¹: a step that finishes a node of height h has terms in the
2^h last steps, or in h + 1 of them without the estimate.

Departures: with `complete` the last step of a tree that is no power of two
finishes its root, the missing leaves counting as known zeros (no noise), where
the literature adds noisy zeros.

References: Kairouz et al., "Practical and private (deep) learning without
sampling or shuffling", 2021, arXiv 2103.00039 (restarts, completion); Honaker,
"Efficient use of differentially private binary trees", 2015.
"""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from tf_dpadaptive import _validate
from tf_dpadaptive.noise import sensitivity, tree_rows
from tf_dpadaptive.noise.matrix import MatrixMechanism
from tf_dpadaptive.noise.mechanism import NoiseStream, Shape, WhiteNoise
from tf_dpadaptive.noise.ring import Move, RingStream
from tf_dpadaptive.noise.streams import RegeneratingStream

Array = NDArray[np.float64]


@keras.saving.register_keras_serializable(package="tf_dpadaptive")
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class TreeAggregation(MatrixMechanism):
    """Noise of a binary tree over the steps.

    Args:
        honaker: Whether nodes average their noise with that of their children:
            about a fifth less error, more draws.
        restart_every: Steps, >= 1, after which a new tree begins; None is one
            tree. It bounds what an example that takes part in every epoch adds
            to one tree, and the cost of a step.
        complete: Whether the last step of a tree takes its root for the whole,
            so that later prefixes carry the noise of one node a tree. Costs a
            level where the tree's size is not a power of two.
        regenerate: Whether past white noise is drawn again. Otherwise the last
            node of each height is kept. The noise is the same.

    Privacy: a node has noise of variance σ²L, with L levels of the tree, since
    one participation enters at most L nodes; with `honaker` the true
    sensitivity is slightly less. Several participations: an upper bound, exact
    where `min_separation` is a power of two.

    Cost of a step: past nodes are drawn again and nothing is kept. Without
    `honaker` two draws on average, log2(n) + 1 at most. With it log2(n)/2 + 1
    on average, but 2^h in the step that finishes a node of height h: up to
    half the tree. With `regenerate=False` one draw in every step and at most
    log2(n) + 1 nodes kept: that times 4 bytes a parameter.

    >>> from tf_dpadaptive import noise
    >>> tree = noise.TreeAggregation(honaker=False)
    >>> [round(float(e)) for e in tree.prefix_errors_squared(8) / 4]
    [1, 1, 2, 1, 2, 2, 3, 1]
    """

    honaker: bool = True
    restart_every: int | None = None
    complete: bool = False
    regenerate: bool = True

    def __post_init__(self) -> None:
        """Checks the arguments."""
        if self.restart_every is not None:
            _validate.positive_integer(restart_every=self.restart_every)
        # Trees share no rows: C is block-diagonal.
        object.__setattr__(self, "bands", self.restart_every)

    def levels(self, num_steps: int) -> int:
        """Returns L, the largest number of nodes over one step."""
        return self._levels(self._sizes(num_steps)[0])

    def noising_matrix(self, num_steps: int) -> Array:
        """See `MatrixMechanism.noising_matrix`."""
        table = self._table(num_steps)
        matrix = np.zeros((num_steps, num_steps))
        for t, row in enumerate(table.row_of_step):
            lags, weights = table.row(row)
            matrix[t, t - lags] = weights
        return math.sqrt(self.levels(num_steps)) * matrix

    def row_norms_squared(self, num_steps: int) -> Array:
        """See `MatrixMechanism.row_norms_squared`."""
        table = self._table(num_steps)
        squares = np.add.reduceat(np.square(table.weights), table.first)
        return float(self.levels(num_steps)) * squares[table.row_of_step]

    def prefix_errors_squared(self, num_steps: int) -> Array:
        """See `MatrixMechanism.prefix_errors_squared`."""
        errors: list[Array] = []
        closed = 0.0
        for size in self._sizes(num_steps):
            inside = tree_rows.prefix_variances(
                size, self.honaker, self.complete
            )
            errors.append(closed + inside)
            closed += inside[-1]
        return self.levels(num_steps) * np.concatenate(errors)

    def sensitivity(
        self, num_steps: int, min_separation: int, max_participations: int
    ) -> float:
        """Returns a bound relative to one participation.

        The squares of how often an example enters each node, added up; on each
        level its participations fill as few nodes as their separation allows.
        """
        most = sensitivity.participations(
            num_steps, min_separation, max_participations
        )
        if most == 1:
            return 1.0
        total = 0
        for level in range(self.levels(num_steps)):
            left = most
            for leaves, nodes in self._nodes(num_steps, level):
                each = min(left, math.ceil(leaves / min_separation))
                full = min(nodes, left // each) if each else 0
                total += full * each**2
                left -= full * each
                if full < nodes:  # one node takes the rest
                    total += left**2
                    left = 0
        return math.sqrt(total / self.levels(num_steps))

    def stream(
        self,
        white: WhiteNoise,
        shapes: Sequence[Shape],
        *,
        num_steps: int | None,
        stream: int = 0,
    ) -> NoiseStream:
        """See `NoiseMechanism.stream`."""
        n = num_steps or 1
        table = self._table(n)
        if not self.regenerate:
            return self._keeping_stream(white, shapes, num_steps, stream)
        with tf.init_scope():
            first = tf.constant(table.first[table.row_of_step], tf.int64)
            count = tf.constant(table.length[table.row_of_step], tf.int64)
        return RegeneratingStream(
            white,
            shapes,
            num_steps,
            stream,
            weights=math.sqrt(self.levels(n)) * table.weights,
            lags=table.lags,
            span=lambda step: (tf.gather(first, step), tf.gather(count, step)),
        )

    def _keeping_stream(
        self,
        white: WhiteNoise,
        shapes: Sequence[Shape],
        num_steps: int | None,
        stream: int,
    ) -> NoiseStream:
        """Row h of the ring is the last left child of height h."""
        n = num_steps or 1
        table = self._table(n)
        kept = self._sizes(n)[0].bit_length()
        gains = np.array([node.gain for node in table.nodes])
        weights = np.zeros((gains.size, 2, kept))
        for row, node in enumerate(table.nodes):
            for height, _, weight in node.left:
                weights[row, :, height] = weight, weight - 1.0
        scale = math.sqrt(self.levels(n))
        with tf.init_scope():
            row_of_step = tf.constant(table.row_of_step, tf.int64)

        def move(
            step: tf.Tensor, one: tf.Tensor, gains: Any, weights: Any
        ) -> Move:
            row = tf.gather(row_of_step, step)
            gain, sums = tf.gather(gains, row), tf.gather(weights, row)

            def advance(
                white: tf.Tensor, rows: tf.Tensor
            ) -> tuple[tf.Tensor, tf.Tensor]:
                kept, emitted = tf.unstack(tf.matmul(sums, rows))
                fresh = gain * white
                return kept + fresh, one * (emitted + fresh)

            # A root that was completed early has no row; nobody asks for it.
            return Move(tf.where(row < kept, row, 0), advance)

        return RingStream(
            white,
            shapes,
            num_steps,
            stream,
            kept=kept,
            numbers=[scale * gains, weights],
            move=move,
        )

    def _sizes(self, num_steps: int) -> list[int]:
        """Sizes of the trees, the largest first."""
        _validate.positive_integer(num_steps=num_steps)
        size = min(self.restart_every or num_steps, num_steps)
        rest = num_steps % size
        return [size] * (num_steps // size) + ([rest] if rest else [])

    def _levels(self, size: int) -> int:
        """⌊log2 size⌋ + 1, or ⌈log2 size⌉ + 1 where trees are completed."""
        return (
            (size - 1).bit_length() + 1 if self.complete else size.bit_length()
        )

    def _nodes(self, num_steps: int, level: int) -> Iterator[tuple[int, int]]:
        """(leaves, number of nodes) on a level of all trees, largest first."""
        width = 2**level
        sizes = self._sizes(num_steps)
        yield width, sum(size // width for size in sizes)
        if self.complete:
            partial = [
                size % width for size in sizes if level < self._levels(size)
            ]
            for leaves in sorted(filter(None, partial), reverse=True):
                yield leaves, 1

    def _table(self, num_steps: int) -> tree_rows.Table:
        return tree_rows.table(
            tuple(self._sizes(num_steps)), self.honaker, self.complete
        )
