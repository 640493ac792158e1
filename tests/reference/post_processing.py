"""Post-processing: the usual rules on the noisy mean ([G] Alg. 1-5)."""

from typing import Any

import numpy as np

from tests.reference.clip import Array
from tests.reference.method import Mask, Method


class SGD(Method):
    """DP-SGD; with momentum in Keras' form (the rate is inside the velocity).

    v ← momentum·v - η g;  θ += v, or with Nesterov θ += momentum·v - η g.
    """

    def __init__(
        self,
        shapes: Any,
        *,
        momentum: float = 0.0,
        nesterov: bool = False,
        **common: Any,
    ):
        super().__init__(shapes, **common)
        self.momentum, self.nesterov = momentum, nesterov
        self.v = self.zeros()

    def update(self, g: Array, mask: Mask, z: list[Array]) -> Array:
        """See the class."""
        gt = self.noisy_mean(g, mask, z[0])
        self.v = self.momentum * self.v - self.eta * gt
        if self.nesterov:
            return -(self.momentum * self.v - self.eta * gt)
        return -self.v


class Adam(Method):
    """μ, ν of the noisy mean; θ -= η μ̂/(√ν̂ + es)."""

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
        """See the class."""
        gt = self.noisy_mean(g, mask, z[0])
        self.mu = self.beta_1 * self.mu + (1 - self.beta_1) * gt
        self.nu = self.beta_2 * self.nu + (1 - self.beta_2) * gt**2
        mu_hat = self.debias(self.mu, self.beta_1)
        nu_hat = self.debias(self.nu, self.beta_2)
        return self.eta * mu_hat / (np.sqrt(nu_hat) + self.epsilon)


class AdamW(Adam):
    """Adam with decoupled weight decay (Keras' default, 0.004)."""

    def __init__(
        self, shapes: Any, *, weight_decay: float = 0.004, **arguments: Any
    ):
        super().__init__(shapes, weight_decay=weight_decay, **arguments)


class Adagrad(Method):
    """ν_t = ν_{t-1} + g²; θ -= η g/(√ν_t + es)."""

    def __init__(
        self,
        shapes: Any,
        *,
        initial_accumulator_value: float = 0.0,
        epsilon: float = 1e-7,
        **common: Any,
    ):
        super().__init__(shapes, **common)
        self.epsilon = epsilon
        self.nu = self.zeros() + initial_accumulator_value

    def update(self, g: Array, mask: Mask, z: list[Array]) -> Array:
        """See the class."""
        gt = self.noisy_mean(g, mask, z[0])
        self.nu = self.nu + gt**2
        return self.eta * gt / (np.sqrt(self.nu) + self.epsilon)
