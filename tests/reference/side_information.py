"""Side information ([G] Alg. 9, [A]) and the noiseless preconditioner.

ν_t = β2 ν + (1-β2) h_t², h_t the public batch's mean gradient (no noise)
g_t from the private batch, optionally scaled by ν before clipping (StP)
θ -= η μ̂/(√ν̂ + es)
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.reference import clip
from tests.reference.clip import Array
from tests.reference.method import Mask, Method
from tests.reference.post_processing import Adam


class AdamSideInformation(Adam):
    """ν from `public_gradient`, which every step must be given.

    With `scale_then_privatize`, `scale_with` says which ν̂ scales the private
    gradients of step t: "current" (ν̂_t, h_t included) or "previous" (ν̂_{t-1},
    as StP, 0 at the first step).
    """

    def __init__(
        self,
        shapes: Any,
        *,
        scale_then_privatize: bool = False,
        scale_epsilon: float = 0.0,
        scale_with: str = "current",
        **arguments: Any,
    ):
        super().__init__(shapes, **arguments)
        self.scaled, self.es1 = scale_then_privatize, scale_epsilon
        self.current = {"current": True, "previous": False}[scale_with]
        self.nu_hat = self.zeros()
        self.h = self.zeros()

    def step(
        self,
        params: Sequence[NDArray],
        per_example: Sequence[NDArray],
        mask: Mask,
        noise: Sequence[Sequence[NDArray]],
        public_gradient: Sequence[NDArray] | None = None,
    ) -> list[Array]:
        """As `Method.step`; `public_gradient` has one array a variable."""
        if public_gradient is None:
            raise ValueError("`public_gradient` must be given at every step.")
        self.h = clip.flatten(public_gradient)
        return super().step(params, per_example, mask, noise)

    def update(self, g: Array, mask: Mask, z: list[Array]) -> Array:
        """See the module."""
        before = self.nu_hat
        self.nu = self.beta_2 * self.nu + (1 - self.beta_2) * self.h**2
        self.nu_hat = self.debias(self.nu, self.beta_2)
        inverse_s: Array | float = 1.0
        if self.scaled:
            root = np.sqrt(self.nu_hat if self.current else before)
            inverse_s = root + self.es1
        mean = clip.clipped_mean(
            g, mask, self.zeta, self.B, denominator=inverse_s
        )
        gt = (mean + self.tau * z[0]) * inverse_s
        self.mu = self.beta_1 * self.mu + (1 - self.beta_1) * gt
        mu_hat = self.debias(self.mu, self.beta_1)
        return self.eta * mu_hat / (np.sqrt(self.nu_hat) + self.epsilon)


class NonPrivatePreconditionerAdam(Adam):
    """NOT PRIVATE: ν from the private batch's un-noised gradient.

    `un_noised` says which: "clipped" is g_t without its noise (the un-scaled
    clipped mean, what leaves the clipping), "raw" is Σ_j g_j / B over the rows
    that take part, unclipped. StP scales by ν̂_{t-1}.
    """

    def __init__(
        self,
        shapes: Any,
        *,
        scale_then_privatize: bool = False,
        scale_epsilon: float = 0.0,
        un_noised: str = "clipped",
        **arguments: Any,
    ):
        super().__init__(shapes, **arguments)
        self.scaled, self.es1 = scale_then_privatize, scale_epsilon
        self.raw = {"raw": True, "clipped": False}[un_noised]
        self.nu_hat = self.zeros()

    def update(self, g: Array, mask: Mask, z: list[Array]) -> Array:
        """See the class."""
        inverse_s: Array | float = 1.0
        if self.scaled:
            inverse_s = np.sqrt(self.nu_hat) + self.es1
        mean = clip.clipped_mean(
            g, mask, self.zeta, self.B, denominator=inverse_s
        )
        h = mean * inverse_s
        gt = (mean + self.tau * z[0]) * inverse_s
        if self.raw:
            h = clip.clipped_mean(g, mask, np.inf, self.B)
        self.mu = self.beta_1 * self.mu + (1 - self.beta_1) * gt
        self.nu = self.beta_2 * self.nu + (1 - self.beta_2) * h**2
        mu_hat = self.debias(self.mu, self.beta_1)
        self.nu_hat = self.debias(self.nu, self.beta_2)
        return self.eta * mu_hat / (np.sqrt(self.nu_hat) + self.epsilon)


class AdaDPS(Method):
    """[A]'s form: SGD on private gradients over √(P + es), not un-scaled.

    P is the mean over the public examples of this step of their squared
    gradients; nothing is kept between steps.
    """

    def __init__(self, shapes: Any, *, epsilon: float = 1e-7, **common: Any):
        super().__init__(shapes, **common)
        self.epsilon = epsilon
        self.P = self.zeros()

    def step(
        self,
        params: Sequence[NDArray],
        per_example: Sequence[NDArray],
        mask: Mask,
        noise: Sequence[Sequence[NDArray]],
        public_per_example: Sequence[NDArray] | None = None,
    ) -> list[Array]:
        """As `Method.step`; public gradients have one row an example."""
        if public_per_example is None:
            raise ValueError("`public_per_example` must be given.")
        public = clip.flatten_examples(public_per_example, self.shapes)
        self.P = np.mean(public**2, axis=0)
        return super().step(params, per_example, mask, noise)

    def update(self, g: Array, mask: Mask, z: list[Array]) -> Array:
        """See the class."""
        mean = clip.clipped_mean(
            g,
            mask,
            self.zeta,
            self.B,
            denominator=np.sqrt(self.P + self.epsilon),
        )
        return self.eta * (mean + self.tau * z[0])
