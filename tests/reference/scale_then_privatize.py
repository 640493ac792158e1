"""Scale-then-privatize ([G] Alg. 8).

s_t = 1/(√ν̂_{t-1} + es1), ν̂_0 = 0
g_t = [(1/B) Σ_j clip(s_t ⊙ g_j, ζ) + (S/B) σ (C⁻¹z)_t] / s_t
"""

from typing import Any

import numpy as np

from tests.reference import clip
from tests.reference.clip import Array
from tests.reference.method import Mask
from tests.reference.post_processing import Adagrad, Adam


class AdamScaleThenPrivatize(Adam):
    """Adam, with es, on g_t."""

    def __init__(self, shapes: Any, *, scale_epsilon: float, **arguments: Any):
        super().__init__(shapes, **arguments)
        self.es1 = scale_epsilon
        self.nu_hat = self.zeros()

    def update(self, g: Array, mask: Mask, z: list[Array]) -> Array:
        """See the module."""
        # 1/s_t, and never s_t itself: finite and non-zero when ν̂ = 0.
        inverse_s = np.sqrt(self.nu_hat) + self.es1
        scaled = clip.clipped_mean(
            g, mask, self.zeta, self.B, denominator=inverse_s
        )
        gt = (scaled + self.tau * z[0]) * inverse_s
        self.mu = self.beta_1 * self.mu + (1 - self.beta_1) * gt
        self.nu = self.beta_2 * self.nu + (1 - self.beta_2) * gt**2
        mu_hat = self.debias(self.mu, self.beta_1)
        self.nu_hat = self.debias(self.nu, self.beta_2)
        return self.eta * mu_hat / (np.sqrt(self.nu_hat) + self.epsilon)


class AdagradScaleThenPrivatize(Adagrad):
    """AdaGrad form: s_t = 1/(√ν_{t-1} + es1)."""

    def __init__(self, shapes: Any, *, scale_epsilon: float, **arguments: Any):
        super().__init__(shapes, **arguments)
        self.es1 = scale_epsilon

    def update(self, g: Array, mask: Mask, z: list[Array]) -> Array:
        """See the module."""
        inverse_s = np.sqrt(self.nu) + self.es1
        scaled = clip.clipped_mean(
            g, mask, self.zeta, self.B, denominator=inverse_s
        )
        gt = (scaled + self.tau * z[0]) * inverse_s
        self.nu = self.nu + gt**2
        return self.eta * gt / (np.sqrt(self.nu) + self.epsilon)
