"""The rules of the methods that release both moments (IME and JME).

μ from g1, ν from g2;  θ -= η μ̂/(√max(ν̂, 0) + es)        (Adam)
ν_t = ν_{t-1} + g2;    θ -= η g1/(√max(ν, 0) + es)        (AdaGrad)
"""

import abc
from typing import Any

import numpy as np

from tests.reference.clip import Array
from tests.reference.method import Mask, Method


class TwoReleases(Method):
    """A method with one noise row for g1 and one for g2."""

    streams = 2

    @abc.abstractmethod
    def releases(
        self, g: Array, mask: Mask, z: list[Array]
    ) -> tuple[Array, Array]:
        """Returns the noisy mean g1 and the noisy square of the mean g2."""


class TwoReleasesAdam(TwoReleases):
    """Adam form."""

    def __init__(
        self,
        shapes: Any,
        *,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        **common: Any,
    ):
        super().__init__(shapes, **common)
        self.beta_1, self.beta_2, self.epsilon = beta_1, beta_2, epsilon
        self.mu, self.nu = self.zeros(), self.zeros()

    def update(self, g: Array, mask: Mask, z: list[Array]) -> Array:
        """See the module."""
        g1, g2 = self.releases(g, mask, z)
        self.mu = self.beta_1 * self.mu + (1 - self.beta_1) * g1
        self.nu = self.beta_2 * self.nu + (1 - self.beta_2) * g2
        mu_hat = self.debias(self.mu, self.beta_1)
        nu_hat = self.debias(self.nu, self.beta_2)
        root = np.sqrt(np.maximum(nu_hat, 0.0))
        return self.eta * mu_hat / (root + self.epsilon)


class TwoReleasesAdagrad(TwoReleases):
    """AdaGrad form.

    `max_with_one` divides by max(1, √max(ν, 0)) instead: [G]'s one-dimensional
    experiment.
    """

    def __init__(
        self,
        shapes: Any,
        *,
        initial_accumulator_value: float = 0.0,
        epsilon: float = 1e-7,
        max_with_one: bool = False,
        **common: Any,
    ):
        super().__init__(shapes, **common)
        self.epsilon, self.max_with_one = epsilon, max_with_one
        self.nu = self.zeros() + initial_accumulator_value

    def update(self, g: Array, mask: Mask, z: list[Array]) -> Array:
        """See the module."""
        g1, g2 = self.releases(g, mask, z)
        self.nu = self.nu + g2
        root = np.sqrt(np.maximum(self.nu, 0.0))
        if self.max_with_one:
            return self.eta * g1 / np.maximum(1.0, root)
        return self.eta * g1 / (root + self.epsilon)
