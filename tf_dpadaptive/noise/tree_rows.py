"""Rows of C⁻¹ of tree aggregation, at node noise 1 (see `tree`)."""

import functools
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Integers = NDArray[np.int64]


class Node(NamedTuple):
    """The estimate of a node in terms of the steps before the last of it.

    Attributes:
        variance: 1/p of the estimate.
        gain: Weight of the fresh Gaussian of the node's last step.
        left: (height, lag of its last step, weight) of each complete left
            sibling along the right spine.
    """

    variance: float
    gain: float
    left: tuple[tuple[int, int, float], ...]


class Table(NamedTuple):
    """The different rows, one after the other, and which one a step has.

    Attributes:
        weights: Numbers of C⁻¹ of all rows.
        lags: Steps back of each; 0 for the first of a row.
        first: Where each row begins.
        length: How many numbers it has.
        row_of_step: The row of each step.
        nodes: The node that each row finishes.
    """

    weights: Array
    lags: Integers
    first: Integers
    length: Integers
    row_of_step: Integers
    nodes: tuple[Node, ...]

    def row(self, index: int) -> tuple[Integers, Array]:
        """Returns (lags, weights) of a row."""
        part = slice(self.first[index], self.first[index] + self.length[index])
        return self.lags[part], self.weights[part]


def node(step: int, height: int, honaker: bool) -> Node:
    """Returns the estimate of the node of this height over leaf `step`.

    Leaves after `step` are known zeros.

    Args:
        step: Last leaf, from 0 in its tree.
        height: 0 is the leaf itself.
        honaker: Whether nodes average with their children.
    """
    p, squares = 1.0, 1.0
    left: list[tuple[int, int, float]] = []
    for i in range(1, height + 1):
        below, p_below = i - 1, p
        start = step >> below << below
        has_left = bool(step >> below & 1)
        if not honaker:
            p = p_below = 1.0
        elif has_left:
            p = 1.0 + 1.0 / (_variance(below) + 1.0 / p_below)
        else:
            p = 1.0 + p_below
        share = (p - 1.0) / p
        left = [(h, lag, share * weight) for h, lag, weight in left]
        squares = 1.0 / p**2 + share**2 * squares
        if has_left:
            left.append((below, step - start + 1, share))
    return Node(1.0 / p, squares**0.5, tuple(left))


def _variance(height: int) -> float:
    """Of Honaker's estimate of a complete node: 1/(2 - 2^-h)."""
    return 1.0 / (2.0 - 2.0**-height)


def prefix_variances(size: int, honaker: bool, complete: bool) -> Array:
    """Returns the variances of the prefix sums of one tree, shape (size,)."""
    lengths = np.arange(1, size + 1)
    total = np.zeros(size)
    for height in range(size.bit_length()):
        variance = _variance(height) if honaker else 1.0
        total += (lengths >> height & 1) * variance
    if complete:
        root = node(size - 1, (size - 1).bit_length(), honaker)
        total[-1] = root.variance
    return total


@functools.lru_cache(maxsize=16)
def table(sizes: tuple[int, ...], honaker: bool, complete: bool) -> Table:
    """Returns the rows of trees of these sizes, one after the other."""
    estimates = [_complete(0, honaker)]
    for height in range(1, max(sizes).bit_length()):
        estimates.append(_complete(height, honaker, estimates))
    nodes = [node(2**h - 1, h, honaker) for h in range(len(estimates))]
    row_of_step: list[Integers] = []
    for size in sizes:
        lengths = np.arange(1, size + 1)
        heights = np.log2(lengths & -lengths).astype(np.int64)
        if complete and size & (size - 1):
            heights[-1] = len(nodes)
            nodes.append(node(size - 1, (size - 1).bit_length(), honaker))
        row_of_step.append(heights)
    rows = [_row(finished, estimates, 1.0) for finished in nodes]
    length = np.array([lags.size for lags, _ in rows])
    return Table(
        np.concatenate([weights for _, weights in rows]),
        np.concatenate([lags for lags, _ in rows]),
        np.cumsum(length) - length,
        length,
        np.concatenate(row_of_step),
        tuple(nodes),
    )


Row = tuple[Integers, Array]


def _complete(
    height: int, honaker: bool, below: list[Row] | None = None
) -> Row:
    """The estimate of a complete node, in terms of white noise."""
    return _row(node(2**height - 1, height, honaker), below or [], 0.0)


def _row(estimate: Node, estimates: list[Row], subtract: float) -> Row:
    """The estimate less `subtract` times those of its left siblings."""
    lags, weights = [np.zeros(1, np.int64)], [np.array([estimate.gain])]
    for height, lag, weight in estimate.left:
        inside, own = estimates[height]
        factor = weight - subtract
        if factor:
            lags.append(lag + inside)
            weights.append(factor * own)
    return np.concatenate(lags), np.concatenate(weights)
