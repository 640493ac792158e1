r"""The noise seam: every mechanism is "the next row of C⁻¹ times white noise".

A mechanism is a frozen description of a lower-triangular strategy matrix C,
scaled so that ONE participation of an example has sensitivity exactly 1 (the
largest column norm of C is 1). The noise added at step t (counted from 0) to a
release of sensitivity S is σ·S·(C⁻¹z)_t, with z white Gaussian noise drawn from
the secret keys. σ therefore means the same for all mechanisms.

Three questions, three consumers:

* `stream(...)` makes the streaming noise that the training step draws from;
* `sensitivity(...)` tells the accountant how much several participations of
  one example add up to, relative to one;
* `row_norms_squared(...)` tells bias correction the variance r_t of row t.
"""

import abc
from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

import numpy as np
import tensorflow as tf

Shape = tuple[int, ...]


class WhiteNoise(Protocol):
    """Keyed standard normal noise (see `keys.SecretKeys`)."""

    def normal(
        self, step: tf.Tensor, variable: int, stream: int, shape: Shape
    ) -> tf.Tensor:
        """Returns float32 N(0, 1) noise that is a function of its arguments.

        Args:
            step: int64 scalar, the step from 0. Any step may be asked for
                again: past terms are regenerated, never stored in the clear.
            variable: Position of the variable in the optimizer's list.
            stream: Which of the releases of one step this noise belongs to.
            shape: Shape of the variable.
        """
        ...


class NoiseStream(abc.ABC):
    """The noise of one training run and one release, step by step.

    `buffers` are plain `tf.Variable`s (not Keras variables). They undo the
    privacy of a released model, so nothing but `dpa.checkpoint` stores them.
    """

    buffers: Sequence[tf.Variable] = ()

    @abc.abstractmethod
    def next(self, step: tf.Tensor) -> list[tf.Tensor]:
        """Returns (C⁻¹z)_step, one float32 tensor a variable, and moves on.

        Args:
            step: int64 scalar, the step from 0; asked for in order, once each.
        """


class NoiseMechanism(abc.ABC):
    """A strategy for correlating noise over steps, at sensitivity 1."""

    #: Whether noise at one step depends on noise at earlier steps. Correlated
    #: noise needs the plan's `num_steps` and is bound to one unbroken run.
    correlated: ClassVar[bool] = True

    #: Number of non-zero diagonals of C, or None where C is full. Amplified
    #: accounting of `cyclic_poisson` needs at most as many bands as parts.
    bands: int | None = None

    @abc.abstractmethod
    def stream(
        self,
        white: WhiteNoise,
        shapes: Sequence[Shape],
        *,
        num_steps: int | None,
        stream: int = 0,
    ) -> NoiseStream:
        """Returns the streaming noise for variables of these shapes."""

    @abc.abstractmethod
    def sensitivity(
        self, num_steps: int, min_separation: int, max_participations: int
    ) -> float:
        """Returns the L2 sensitivity relative to one participation.

        Args:
            num_steps: Number of steps n.
            min_separation: Least distance b ≥ 1 of two participations of one
                example (b = 1 allows consecutive steps).
            max_participations: Largest number k ≥ 1 of participations.
        """

    def periodic_sensitivity(
        self, num_steps: int, period: int, max_participations: int
    ) -> float:
        """Returns the relative sensitivity for steps exactly `period` apart.

        One order of the examples that is kept in every epoch gives steps j,
        j + period, .... They are separated too, so `sensitivity` holds;
        mechanisms that know better say so.

        Args:
            num_steps: Number of steps n.
            period: Distance >= 1 of two participations.
            max_participations: Largest number k >= 1 of participations.
        """
        return self.sensitivity(num_steps, period, max_participations)

    @abc.abstractmethod
    def row_norms_squared(self, num_steps: int) -> np.ndarray:
        """Returns r_t = ||row t of C⁻¹||², shape (num_steps,), float64."""

    def prefix_errors_squared(self, num_steps: int) -> np.ndarray:
        """Returns e_t, the variance of the summed noise of steps 0..t.

        The noise has σ = 1 and sensitivity 1; √mean(e) is the RMSE by which
        mechanisms are compared. Shape (num_steps,), float64.

        Raises:
            NotImplementedError: for correlated noise that does not say.
        """
        if self.correlated:
            raise NotImplementedError(
                f"{type(self).__name__} does not know its covariances."
            )
        return np.cumsum(self.row_norms_squared(num_steps))

    def as_dp_query(
        self,
        l2_norm_clip: float,
        noise_multiplier: float,
        record_specs: Any,
        *,
        num_steps: int | None = None,
        seed: int | None = None,
    ) -> Any:
        """Returns a TF-Privacy `DPQuery` with this noise (Python 3.11).

        Args:
            l2_norm_clip: ζ > 0.
            noise_multiplier: σ >= 0.
            record_specs: Nested `tf.TensorSpec`s of one record.
            num_steps: Number of results; needed by correlated noise.
            seed: None, or a whole number for tests.

        Privacy: its state holds the secret; see `as_dp_query`.
        """
        from tf_dpadaptive.noise.as_dp_query import as_dp_query

        return as_dp_query(
            self,
            l2_norm_clip,
            noise_multiplier,
            record_specs,
            num_steps=num_steps,
            seed=seed,
        )

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        return {}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "NoiseMechanism":
        """Returns the mechanism that `get_config` described."""
        return cls(**config)

    def __eq__(self, other: object) -> bool:
        return (
            type(self) is type(other)
            and isinstance(other, NoiseMechanism)
            and self.get_config() == other.get_config()
        )

    def __hash__(self) -> int:
        return hash((type(self), repr(self.get_config())))

    def __repr__(self) -> str:
        config = self.get_config()
        arguments = ", ".join(f"{k}={v!r}" for k, v in config.items())
        return f"{type(self).__name__}({arguments})"
