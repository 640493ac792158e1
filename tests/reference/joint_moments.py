"""Joint moment estimation ([K]).

p = Π_ζ ḡ;   g1 = p + J σ z1;   g2 = p² + (J/√λ) σ z2
"""

from typing import Any

import numpy as np

from tests.reference import clip
from tests.reference.clip import Array
from tests.reference.method import Mask, Method
from tests.reference.two_releases import TwoReleasesAdagrad, TwoReleasesAdam


def largest_square_distance(r: float, radius: float) -> float:
    """Returns M(r) = max ||x² - y²||² over ||x||, ||y|| <= R, ||x - y|| = r."""
    if r <= 2 * radius / 3:
        return r**2 * (2 * radius - r) ** 2
    return 2 * r**2 * (radius**2 - r**2 / 4)


def joint_sensitivity(distance: float, radius: float, scale: float) -> float:
    """Returns J(λ) of the record (p, √λ p²), ||p|| <= R, ||p - p'|| <= D."""
    # No two points of the ball are further apart (matters for B < 1/2).
    d = min(distance, 2 * radius)
    if d**2 > 2 * radius**2 + 1 / scale:
        squared = 2 * radius**2 + 2 * scale * radius**4 + 1 / (2 * scale)
    else:
        squared = d**2 + scale * largest_square_distance(d, radius)
    return float(np.sqrt(squared))


def _scale_and_sensitivity(
    method: Method, scale: float | None
) -> tuple[float, float]:
    lam = 1 / (2 * method.zeta**2) if scale is None else scale
    return lam, joint_sensitivity(method.S / method.B, method.zeta, lam)


def _releases(
    method: Method, lam: float, j: float, g: Array, mask: Mask, z: list[Array]
) -> tuple[Array, Array]:
    """Returns g1 and g2, both from the projected mean."""
    p = clip.project(method.clipped_mean(g, mask), method.zeta)
    g1 = p + j * method.sigma * z[0]
    g2 = p**2 + j / np.sqrt(lam) * method.sigma * z[1]
    return g1, g2


class AdamJointMoments(TwoReleasesAdam):
    """Adam form; `scale` is λ."""

    def __init__(
        self, shapes: Any, *, scale: float | None = None, **arguments: Any
    ):
        super().__init__(shapes, **arguments)
        self.lam, self.J = _scale_and_sensitivity(self, scale)

    def releases(
        self, g: Array, mask: Mask, z: list[Array]
    ) -> tuple[Array, Array]:
        """See the module."""
        return _releases(self, self.lam, self.J, g, mask, z)


class AdagradJointMoments(TwoReleasesAdagrad):
    """AdaGrad form; `scale` is λ."""

    def __init__(
        self, shapes: Any, *, scale: float | None = None, **arguments: Any
    ):
        super().__init__(shapes, **arguments)
        self.lam, self.J = _scale_and_sensitivity(self, scale)

    def releases(
        self, g: Array, mask: Mask, z: list[Array]
    ) -> tuple[Array, Array]:
        """See the module."""
        return _releases(self, self.lam, self.J, g, mask, z)
