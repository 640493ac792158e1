"""Tree aggregation against a tree that is built node by node."""

import itertools
import math

import numpy as np
import pytest

from tests.noise.white import Replayed, run
from tf_dpadaptive.noise.tree import TreeAggregation


class Nodes:
    """Noise on every node of a tree, in NumPy, one column a node.

    A vector over all nodes stands for a sum of their Gaussians, so that
    variances and covariances are exact. Leaves from `size` on are known zeros.
    """

    def __init__(self, size, height):
        self.size = size
        self.index = {
            (h, i): place
            for place, (h, i) in enumerate(
                (h, i)
                for h in range(height + 1)
                for i in range(-(-size // 2**h))
            )
        }

    def fresh(self, h, i):
        return np.eye(len(self.index))[self.index[h, i]]

    def honaker(self, h, i):
        """The best estimate from the node and those below, and its variance.

        Least squares, by inverse variances; known zeros have variance 0.
        """
        if i * 2**h >= self.size:
            return np.zeros(len(self.index)), 0.0
        if h == 0:
            return self.fresh(0, i), 1.0
        below = [self.honaker(h - 1, 2 * i), self.honaker(h - 1, 2 * i + 1)]
        other = below[0][1] + below[1][1]
        weight = other / (1.0 + other)  # of the fresh noise, of variance 1
        estimate = weight * self.fresh(h, i) + (1 - weight) * (
            below[0][0] + below[1][0]
        )
        return estimate, weight

    def plain(self, h, i):
        return self.fresh(h, i), 1.0

    def prefix(self, length, estimate):
        """Noise of the sum of the first `length` steps."""
        total, start = np.zeros(len(self.index)), 0
        for h in reversed(range(length.bit_length())):
            if length >> h & 1:
                total = total + estimate(h, start >> h)[0]
                start += 2**h
        return total


def covariance(n, mechanism):
    """Covariance of the prefix noise of n steps, at node noise 1."""
    size = mechanism.restart_every or n
    blocks, closed = [], []
    for start in range(0, n, size):
        own = min(size, n - start)
        height = (own - 1).bit_length()
        nodes = Nodes(own, height)
        estimate = nodes.honaker if mechanism.honaker else nodes.plain
        rows = [nodes.prefix(t + 1, estimate) for t in range(own)]
        if mechanism.complete:
            rows[-1] = estimate(height, 0)[0]
        width = sum(block.shape[1] for block in closed)
        before = (
            np.concatenate([block[-1] for block in closed])
            if closed
            else np.zeros(0)
        )
        blocks.append(np.hstack([np.tile(before, (own, 1)), np.array(rows)]))
        assert blocks[-1].shape[1] == width + len(nodes.index)
        closed.append(np.array(rows))
    widest = max(block.shape[1] for block in blocks)
    prefixes = np.vstack(
        [np.pad(b, [(0, 0), (0, widest - b.shape[1])]) for b in blocks]
    )
    return prefixes @ prefixes.T


VARIANTS = [
    TreeAggregation(honaker, restart_every, complete)
    for honaker, restart_every, complete in itertools.product(
        (False, True), (None, 1, 4, 6, 7, 12), (False, True)
    )
]


@pytest.mark.parametrize("n", [1, 2, 3, 8, 13, 19])
@pytest.mark.parametrize("tree", VARIANTS, ids=repr)
def test_covariance_is_that_of_the_nodes(tree, n):
    summed = np.cumsum(tree.noising_matrix(n), axis=0)
    np.testing.assert_allclose(
        summed @ summed.T, tree.levels(n) * covariance(n, tree), atol=1e-12
    )


def test_plain_prefix_variance_is_the_popcount():
    tree = TreeAggregation(honaker=False)
    errors = tree.prefix_errors_squared(200)
    popcount = [bin(t + 1).count("1") for t in range(200)]
    np.testing.assert_allclose(errors, 8.0 * np.array(popcount))


def test_popcount_of_the_streaming_noise():
    # White noise 1 in every step: what remains is a sum over node weights.
    class Ones(Replayed):
        def normal(self, step, variable, stream, shape):
            return 0.0 * super().normal(step, variable, stream, shape) + 1.0

    tree = TreeAggregation(honaker=False)
    (noise,) = run(tree.stream(Ones([()], 16), [()], num_steps=16), range(16))
    popcount = [bin(t + 1).count("1") for t in range(16)]
    np.testing.assert_allclose(
        np.cumsum(noise), np.sqrt(5) * np.array(popcount), rtol=1e-5
    )


def test_honaker_variance_of_a_complete_subtree():
    tree = TreeAggregation()
    for h in range(7):
        errors = tree.prefix_errors_squared(64)
        np.testing.assert_allclose(errors[2**h - 1], 7 / (2 - 2.0**-h))


@pytest.mark.parametrize(
    ("n", "honaker", "mean", "largest"),
    [
        (4, False, 1.936492, 2.449490),
        (4, True, 1.711307, 2.236068),
        (64, False, 4.594494, 6.480741),
        (64, True, 3.652307, 5.154460),
    ],
)
def test_errors_of_the_notes(n, honaker, mean, largest):
    errors = TreeAggregation(honaker).prefix_errors_squared(n)
    np.testing.assert_allclose(np.sqrt(np.mean(errors)), mean, rtol=1e-6)
    np.testing.assert_allclose(np.sqrt(np.max(errors)), largest, rtol=1e-6)


@pytest.mark.parametrize(
    ("n", "b", "zcdp"), [(4, 2, 4.0), (5, 2, 4.5), (7, 2, 5.5)]
)
def test_zcdp_of_the_notes(n, b, zcdp):
    # Raw node noise σ = 1: ρ = sens²/2, and sens² = L times the relative one.
    tree = TreeAggregation(honaker=False)
    squared = tree.sensitivity(n, b, n) ** 2 * tree.levels(n)
    np.testing.assert_allclose(squared / 2, zcdp)


@pytest.mark.parametrize(
    ("n", "restart_every", "complete", "levels"),
    [
        (1, None, False, 1),
        (7, None, False, 3),
        (8, None, False, 4),
        (7, None, True, 4),
        (8, None, True, 4),
        (9, 5, False, 3),
        (9, 5, True, 4),
        (3, 5, False, 2),
    ],
)
def test_levels(n, restart_every, complete, levels):
    tree = TreeAggregation(restart_every=restart_every, complete=complete)
    assert tree.levels(n) == levels


def worst(n, b, k, tree):
    """Largest sum of squared node counts over all participation patterns."""
    size, best = tree.restart_every or n, 0
    for count in range(1, k + 1):
        for steps in itertools.combinations(range(n), count):
            if any(q - p < b for p, q in itertools.pairwise(steps)):
                continue
            total = 0
            for start in range(0, n, size):
                own = min(size, n - start)
                inside = [t - start for t in steps if start <= t < start + own]
                for h in range((own - 1).bit_length() + 1):
                    nodes = -(-own // 2**h) if tree.complete else own // 2**h
                    for i in range(nodes):
                        total += sum(t >> h == i for t in inside) ** 2
            best = max(best, total)
    return best


@pytest.mark.parametrize(
    ("n", "b", "k"),
    [
        (n, b, k)
        for n in (4, 7, 10, 12)
        for b in (1, 2, 3, 4, 5)
        for k in (2, 3)
    ],
)
@pytest.mark.parametrize(
    "tree",
    [
        TreeAggregation(),
        TreeAggregation(restart_every=5),
        TreeAggregation(restart_every=5, complete=True),
        TreeAggregation(complete=True),
    ],
    ids=repr,
)
def test_sensitivity_bounds_every_pattern(tree, n, b, k):
    exact = math.sqrt(worst(n, b, k, tree) / tree.levels(n))
    bound = tree.sensitivity(n, b, k)
    if b in (1, 2, 4) and tree == TreeAggregation():
        np.testing.assert_allclose(bound, exact)
    assert exact * (1 - 1e-12) <= bound <= 1.25 * exact


def test_restarts_add_up_for_participations_in_different_trees():
    tree = TreeAggregation(restart_every=8)
    np.testing.assert_allclose(tree.sensitivity(32, 8, 4), 2.0)
    # In one tree they meet in its upper nodes.
    assert TreeAggregation().sensitivity(32, 8, 4) > 2.0


def test_completion_lowers_the_error_of_later_trees():
    plain, complete = (
        TreeAggregation(False, 15, flag).prefix_errors_squared(150)
        for flag in (False, True)
    )
    assert complete[-1] < 0.5 * plain[-1]


def test_a_million_steps_need_no_matrix():
    errors = TreeAggregation().prefix_errors_squared(2**20)
    np.testing.assert_allclose(errors[-1], 21 / (2 - 2.0**-20))
