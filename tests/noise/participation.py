"""Brute force over the patterns in which an example takes part."""

import itertools

import numpy as np


def patterns(n, b, k):
    """All sets of at most k of n steps, any two at least b apart."""
    for size in range(1, k + 1):
        for steps in itertools.combinations(range(n), size):
            if all(q - p >= b for p, q in itertools.pairwise(steps)):
                yield list(steps)


def aligned(c, b, k):
    """Brute force with equal contributions: exact for X >= 0."""
    return max(
        np.linalg.norm(np.sum(c[:, steps], axis=1))
        for steps in patterns(c.shape[1], b, k)
    )


def signed(c, steps):
    """Brute force over the signs of the contributions of one pattern."""
    signs = itertools.product([1.0], *[[1.0, -1.0]] * (len(steps) - 1))
    return max(np.linalg.norm(c[:, steps] @ np.array(s)) for s in signs)
