"""Delayed preconditioner, DP² ([L]).

A cycle is s1 plain steps (clip1, η1, G += g) and then s2 adaptive steps on
gradients over √A + es (clip2, η2, not un-scaled). The last plain step of a
cycle ends with A ← φ(A, G/s1), G ← 0.
"""

import abc
from typing import Any

import numpy as np

from tests.reference import clip
from tests.reference.clip import Array
from tests.reference.method import Mask, Method


class _Delayed(Method):
    def __init__(
        self,
        shapes: Any,
        *,
        plain_steps: int = 100,
        adaptive_steps: int = 100,
        adaptive_learning_rate: float | None = None,
        adaptive_l2_norm_clip: float | None = None,
        epsilon: float = 1e-8,
        **common: Any,
    ):
        super().__init__(shapes, **common)
        self.s1, self.s2, self.es = plain_steps, adaptive_steps, epsilon
        self.clip1 = self.zeta
        self.clip2 = (
            self.zeta
            if adaptive_l2_norm_clip is None
            else adaptive_l2_norm_clip
        )
        self.eta2 = adaptive_learning_rate
        self.A, self.G = self.zeros(), self.zeros()

    @abc.abstractmethod
    def refreshed(self, mean: Array) -> Array:
        """Returns φ(A, G/s1)."""

    def update(self, g: Array, mask: Mask, z: list[Array]) -> Array:
        """See the module."""
        position = (self.t - 1) % (self.s1 + self.s2)
        noise = self.factor * self.sigma / self.B * z[0]
        if position < self.s1:
            gt = clip.clipped_mean(g, mask, self.clip1, self.B)
            gt = gt + self.clip1 * noise
            self.G = self.G + gt
            if position == self.s1 - 1:
                self.A = self.refreshed(self.G / self.s1)
                self.G = self.zeros()
            return self.eta * gt
        denominator = np.sqrt(self.A) + self.es
        gt = clip.clipped_mean(
            g, mask, self.clip2, self.B, denominator=denominator
        )
        gt = gt + self.clip2 * noise
        return (self.eta if self.eta2 is None else self.eta2) * gt


class RMSpropDelayed(_Delayed):
    """A ← γA + (1-γ)(G/s1)²; γ is called `rho`, as in Keras' RMSprop."""

    def __init__(self, shapes: Any, *, rho: float = 0.9, **arguments: Any):
        super().__init__(shapes, **arguments)
        self.gamma = rho

    def refreshed(self, mean: Array) -> Array:
        """See the class."""
        return self.gamma * self.A + (1 - self.gamma) * mean**2


class AdagradDelayed(_Delayed):
    """A += (G/s1)²."""

    def refreshed(self, mean: Array) -> Array:
        """See the class."""
        return self.A + mean**2
