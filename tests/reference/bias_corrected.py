"""Bias correction of the second moment ([T], [G] Alg. 7).

φ_t = β2 φ_{t-1} + (1-β2) τ² r_t;  bias_t = φ_t/(1-β2^t)
θ -= η μ̂/(√max(ν̂ - bias_t, floor) + es)
"""

from typing import Any

import numpy as np

from tests.reference.clip import Array
from tests.reference.method import Mask
from tests.reference.post_processing import Adagrad, Adam


class AdamBiasCorrected(Adam):
    """Adam form."""

    def __init__(self, shapes: Any, *, floor: float = 0.0, **arguments: Any):
        super().__init__(shapes, **arguments)
        self.floor, self.phi, self.bias = floor, 0.0, 0.0

    def update(self, g: Array, mask: Mask, z: list[Array]) -> Array:
        """See the module."""
        gt = self.noisy_mean(g, mask, z[0])
        self.mu = self.beta_1 * self.mu + (1 - self.beta_1) * gt
        self.nu = self.beta_2 * self.nu + (1 - self.beta_2) * gt**2
        self.phi = (
            self.beta_2 * self.phi + (1 - self.beta_2) * self.tau**2 * self.r
        )
        self.bias = self.debias(self.phi, self.beta_2)
        mu_hat = self.debias(self.mu, self.beta_1)
        nu_hat = self.debias(self.nu, self.beta_2)
        root = np.sqrt(np.maximum(nu_hat - self.bias, self.floor))
        return self.eta * mu_hat / (root + self.epsilon)


class AdagradBiasCorrected(Adagrad):
    """AdaGrad form: bias_t = Σ_{i<=t} τ² r_i."""

    def __init__(self, shapes: Any, *, floor: float = 0.0, **arguments: Any):
        super().__init__(shapes, **arguments)
        self.floor, self.bias = floor, 0.0

    def update(self, g: Array, mask: Mask, z: list[Array]) -> Array:
        """See the module."""
        gt = self.noisy_mean(g, mask, z[0])
        self.nu = self.nu + gt**2
        self.bias = self.bias + self.tau**2 * self.r
        root = np.sqrt(np.maximum(self.nu - self.bias, self.floor))
        return self.eta * gt / (root + self.epsilon)
