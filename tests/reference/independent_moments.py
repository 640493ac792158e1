"""Independent moment estimation ([G] Alg. 6).

g1 = ḡ + √2 (S/B) σ z1;   g2 = (Π_ζ ḡ)² + √2 S2 σ z2
"""

from typing import Any

import numpy as np

from tests.reference import clip
from tests.reference.clip import Array
from tests.reference.method import Mask, Method
from tests.reference.two_releases import TwoReleasesAdagrad, TwoReleasesAdam


def square_sensitivity(
    zeta: float, batch_size: float, factor: int, sensitivity: str
) -> float:
    """Returns S2, how far one example moves (Π_ζ ḡ)².

    `"tight"` holds for every batch when B >= 1.5·factor; under zero-out and
    1 <= B < 1.5 only for batches of at most B examples (the caller's promise).
    """
    b = batch_size
    if sensitivity == "paper":
        return factor * (2 * b + 1) * zeta**2 / b**2
    if sensitivity != "tight":
        raise ValueError(
            "`sensitivity` must be 'paper' or 'tight'. "
            f"Received: sensitivity={sensitivity!r}."
        )
    if b < (1 if factor == 1 else 3):
        raise ValueError(
            "`sensitivity='tight'` needs B >= 1 (zero-out) or B >= 3 "
            f"(replace-one). Received: batch_size={b}."
        )
    if factor == 1:
        return (2 * b - 1) * zeta**2 / b**2
    return 4 * (b - 1) * zeta**2 / b**2


def _releases(
    method: Method, s2: float, g: Array, mask: Mask, z: list[Array]
) -> tuple[Array, Array]:
    """Returns g1 (from ḡ as it is) and g2 (from the projected ḡ)."""
    mean = method.clipped_mean(g, mask)
    square = clip.project(mean, method.zeta) ** 2
    g1 = mean + np.sqrt(2) * (method.S / method.B) * method.sigma * z[0]
    g2 = square + np.sqrt(2) * s2 * method.sigma * z[1]
    return g1, g2


class AdamIndependentMoments(TwoReleasesAdam):
    """Adam form."""

    def __init__(
        self, shapes: Any, *, sensitivity: str = "paper", **arguments: Any
    ):
        super().__init__(shapes, **arguments)
        self.S2 = square_sensitivity(
            self.zeta, self.B, self.factor, sensitivity
        )

    def releases(
        self, g: Array, mask: Mask, z: list[Array]
    ) -> tuple[Array, Array]:
        """See the module."""
        return _releases(self, self.S2, g, mask, z)


class AdagradIndependentMoments(TwoReleasesAdagrad):
    """AdaGrad form."""

    def __init__(
        self, shapes: Any, *, sensitivity: str = "paper", **arguments: Any
    ):
        super().__init__(shapes, **arguments)
        self.S2 = square_sensitivity(
            self.zeta, self.B, self.factor, sensitivity
        )

    def releases(
        self, g: Array, mask: Mask, z: list[Array]
    ) -> tuple[Array, Array]:
        """See the module."""
        return _releases(self, self.S2, g, mask, z)
