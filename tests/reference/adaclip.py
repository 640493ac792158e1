"""AdaCliP ([P]): clip and noise around a private mean, in private units.

w_j = (g_j - m)/b;  ŵ_j = w_j/max(1, ||w_j||);  b_i = √s_i √(Σ_k s_k)
g̃ = b ⊙ (1/B)(Σ_j ŵ_j + S σ (C⁻¹z)_t) + m,   S = 1 or 2
θ -= η g̃
v = min(max(B ((g̃ - m)² - b² S² σ² r_t/B²), h1), h2), with the old m
m ← β1 m + (1-β1) g̃;   s² ← β2 s² + (1-β2) v
"""

from typing import Any

import numpy as np

from tests.reference import clip
from tests.reference.clip import Array
from tests.reference.method import Mask, Method


class AdaCliP(Method):
    """Starts at m = 0 and s = ζ/√d, so b = ζ: step 1 is DP-SGD with clip ζ.

    `variance` is "per_example" (the factor B in v) or "batch" (without it).
    """

    def __init__(
        self,
        shapes: Any,
        *,
        h2: float,
        h1: float = 1e-12,
        beta_1: float = 0.99,
        beta_2: float = 0.9,
        variance: str = "per_example",
        **common: Any,
    ):
        super().__init__(shapes, **common)
        self.h1, self.h2 = h1, h2
        self.beta_1, self.beta_2 = beta_1, beta_2
        self.K = {"per_example": self.B, "batch": 1.0}[variance]
        self.m = self.zeros()
        self.s = self.zeros() + self.zeta / np.sqrt(self.d)

    @property
    def b(self) -> Array:
        """The units that Theorem 1 gives for the present s."""
        return np.sqrt(self.s) * np.sqrt(np.sum(self.s))

    def update(self, g: Array, mask: Mask, z: list[Array]) -> Array:
        """See the module."""
        b, m, S = self.b, self.m, self.factor
        w_mean = clip.clipped_mean(
            g, mask, 1.0, self.B, center=m, denominator=b
        )
        gt = b * (w_mean + S * self.sigma / self.B * z[0]) + m
        noise_variance = b**2 * S**2 * self.sigma**2 * self.r / self.B**2
        v = self.K * ((gt - m) ** 2 - noise_variance)
        v = np.minimum(np.maximum(v, self.h1), self.h2)
        self.m = self.beta_1 * m + (1 - self.beta_1) * gt
        self.s = np.sqrt(self.beta_2 * self.s**2 + (1 - self.beta_2) * v)
        return self.eta * gt
