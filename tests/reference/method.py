"""What all transcriptions share: the step around the formulas.

State is kept as flat float64 vectors over all variables, so that the formulas
read as in the papers; `split` gives them back one array a variable.
"""

import abc
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from tests.reference import clip
from tests.reference.clip import Array, Shape

Mask = NDArray[np.bool_]


class Method(abc.ABC):
    """One method: `update` is its pseudocode.

    Args:
        shapes: Shapes of the variables, in order.
        l2_norm_clip: ζ.
        noise_multiplier: σ, noise over the sensitivity of one participation.
        batch_size: B, the expected batch size, the fixed divisor.
        sensitivity_factor: 1 (zero-out, add-or-remove) or 2 (replace-one).
        learning_rate: η, or a function of the number of finished steps.
        weight_decay: Decoupled, as Keras: θ -= η·weight_decay·θ beside the
            update, with the method's `learning_rate`.
        row_norms: r_1, r_2, …, SQUARED row norms of C⁻¹; None is 1, 1, ….
    """

    #: How many noise rows one step takes.
    streams = 1

    def __init__(
        self,
        shapes: Sequence[Shape],
        *,
        l2_norm_clip: float,
        noise_multiplier: float,
        batch_size: float,
        sensitivity_factor: int = 1,
        learning_rate: float | Callable[[int], float],
        weight_decay: float = 0.0,
        row_norms: Sequence[float] | NDArray | None = None,
    ):
        self.shapes = [tuple(shape) for shape in shapes]
        self.d = sum(int(np.prod(shape)) for shape in self.shapes)
        self.zeta = float(l2_norm_clip)
        self.sigma = float(noise_multiplier)
        self.B = float(batch_size)
        self.factor = sensitivity_factor
        self.S = sensitivity_factor * self.zeta
        self.tau = self.S * self.sigma / self.B
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.row_norms = row_norms
        self.t = 0

    @abc.abstractmethod
    def update(self, g: Array, mask: Mask, z: list[Array]) -> Array:
        """Returns what is subtracted from θ at step t (from 1).

        Args:
            g: (n, d) per-example gradients.
            mask: (n,) True where the example takes part.
            z: One unit-σ noise row (d,) a stream.
        """

    def step(
        self,
        params: Sequence[NDArray],
        per_example: Sequence[NDArray],
        mask: Mask,
        noise: Sequence[Sequence[NDArray]],
    ) -> list[Array]:
        """Returns the new parameters.

        Args:
            params: One array a variable.
            per_example: (n, *shape) a variable, at `params`.
            mask: (n,) bool, False for padding.
            noise: noise[stream][variable], the unit-σ row (C⁻¹z)_t.
        """
        self.t += 1
        theta = clip.flatten(params)
        g = clip.flatten_examples(per_example, self.shapes)
        z = [clip.flatten(rows) for rows in noise]
        if len(z) != self.streams:
            raise ValueError(
                f"{type(self).__name__} takes {self.streams} noise streams. "
                f"Received: {len(z)}."
            )
        decay = self.eta * self.weight_decay * theta
        return self.split(theta - decay - self.update(g, mask, z))

    @property
    def eta(self) -> float:
        """η of the current step."""
        if callable(self.learning_rate):
            return float(self.learning_rate(self.t - 1))
        return float(self.learning_rate)

    @property
    def r(self) -> float:
        """r_t of the current step."""
        return 1.0 if self.row_norms is None else self.row_norms[self.t - 1]

    def split(self, vector: Array) -> list[Array]:
        """Returns a flat state vector as one array a variable."""
        return clip.split(vector, self.shapes)

    def zeros(self) -> Array:
        """Returns a fresh state vector."""
        return np.zeros(self.d)

    def clipped_mean(self, g: Array, mask: Mask) -> Array:
        """Returns ḡ_t."""
        return clip.clipped_mean(g, mask, self.zeta, self.B)

    def noisy_mean(self, g: Array, mask: Mask, z: Array) -> Array:
        """Returns ḡ_t + (S/B) σ (C⁻¹z)_t."""
        return self.clipped_mean(g, mask) + self.tau * z

    def debias(self, moment: Array | float, beta: float):
        """Returns the moment over 1 - β^t."""
        return moment / (1 - beta**self.t)
