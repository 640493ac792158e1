"""The privacy plan: the one place where a privacy number is typed.

    plan = PrivacyPlan.calibrate(
        epsilon=3.0, delta=1e-5, num_examples=60_000,
        expected_batch_size=512, epochs=20,
    )

Optimizer, sampler and accountant all read it, so they can't disagree.
"""

import dataclasses
import math
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import keras

from tf_dpadaptive import _validate
from tf_dpadaptive.accounting import calibrate as calibration
from tf_dpadaptive.accounting import compose, events, overflow, statement
from tf_dpadaptive.noise.independent import Independent
from tf_dpadaptive.noise.mechanism import NoiseMechanism

if TYPE_CHECKING:
    import tensorflow as tf

SAMPLINGS = ("poisson", "cyclic_poisson", "shuffled", "in_order")
ADJACENCIES = ("zero_out", "add_or_remove", "replace")


@keras.saving.register_keras_serializable(package="tf_dpadaptive")
@dataclasses.dataclass(frozen=True)
class PrivacyPlan:
    """How much noise, for which batches, over how many updates.

    Attributes:
        noise_multiplier: σ >= 0: standard deviation of the noise over the
            sensitivity of ONE participation of one example, the same for all
            noise mechanisms. 0 is allowed for comparisons: ε is infinite.
        expected_batch_size: B, a whole number >= 1: the fixed divisor of the
            clipped sum, whatever number of examples arrives.
        num_examples: N >= B, the size of the training set, treated as public;
            None if not known: then ε can't be had.
        num_steps: Updates planned, >= 1. More of them are refused. Needed by
            correlated noise; None is no limit.
        sampling: How batches come about. "poisson": each example with
            probability B/N, afresh at every update. "cyclic_poisson": as many
            fixed parts as the noise has bands; step t samples from part t mod
            parts. "shuffled": one secret order for the whole run, consecutive
            batches of B. "in_order": the same in the order of the data.
        noise: The noise mechanism; default `Independent()`.
        delta: δ in (0, 1), or None and given when ε is asked for.
        adjacency: What neighbouring data means. "zero_out": one example's
            contribution becomes 0; "add_or_remove": one example more or less;
            "replace": one example becomes any other, at twice the
            sensitivity.
    """

    noise_multiplier: float
    expected_batch_size: int
    num_examples: int | None = None
    num_steps: int | None = None
    sampling: str = "poisson"
    noise: NoiseMechanism = dataclasses.field(default_factory=Independent)
    delta: float | None = None
    adjacency: str = "zero_out"

    def __post_init__(self) -> None:
        _validate.non_negative(noise_multiplier=self.noise_multiplier)
        _validate.positive_integer(expected_batch_size=self.expected_batch_size)
        _validate.one_of(SAMPLINGS, sampling=self.sampling)
        _validate.one_of(ADJACENCIES, adjacency=self.adjacency)
        if self.num_examples is not None:
            _validate.positive_integer(num_examples=self.num_examples)
            if self.expected_batch_size > self.num_examples:
                raise ValueError(
                    "`expected_batch_size` must be <= num_examples. Received: "
                    f"expected_batch_size={self.expected_batch_size!r}, "
                    f"num_examples={self.num_examples!r}."
                )
        if self.num_steps is not None:
            _validate.positive_integer(num_steps=self.num_steps)
        if self.delta is not None:
            _validate.open_unit(delta=self.delta)
        if not isinstance(self.noise, NoiseMechanism):
            raise TypeError(
                "`noise` must be a noise mechanism such as "
                f"dpa.noise.Independent(). Received: noise={self.noise!r}."
            )
        if self.noise.correlated and self.num_steps is None:
            raise ValueError(
                "Correlated noise is laid out for the whole run: give "
                f"`num_steps`. Received: noise={self.noise!r}, num_steps=None."
            )
        for name, kind in (
            ("noise_multiplier", float),
            ("expected_batch_size", int),
            ("num_examples", int),
            ("num_steps", int),
            ("delta", float),
        ):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, kind(value))

    # -- derived numbers ----------------------------------------------------

    @property
    def steps_per_epoch(self) -> int:
        """⌈N/B⌉: updates in one pass."""
        return math.ceil(self._examples() / self.expected_batch_size)

    @property
    def sampling_probability(self) -> float:
        """B/N: how likely an example is to be in a batch, overall."""
        return self.expected_batch_size / self._examples()

    @property
    def parts(self) -> int:
        """Number of parts of cyclic_poisson (the noise's bands); else 1."""
        if self.sampling != "cyclic_poisson":
            return 1
        if self.noise.bands is None:
            raise ValueError(
                "sampling='cyclic_poisson' needs noise with a number of bands, "
                "e.g. dpa.noise.BandedMF(bands=8). Received: "
                f"noise={self.noise!r}."
            )
        return self.noise.bands

    @property
    def max_batch_size(self) -> int:
        """Rows of the fixed shape of a batch, padding included.

        For Poisson samples so many that an overflow is negligible; what it
        costs is part of every ε (see `accounting.overflow`).
        """
        return overflow.max_batch_size(self)

    @property
    def sensitivity_factor(self) -> int:
        """Sensitivity over that under zero-out: 2 under "replace", else 1.

        The noise is σ · factor · (zero-out sensitivity), for the clipped sum
        S = factor · clip norm. For releases whose replace-one sensitivity is
        less than twice the zero-out one, the factor still holds: amplified
        accounting measures both neighbours from the absent example.
        """
        return 2 if self.adjacency == "replace" else 1

    # -- privacy ------------------------------------------------------------

    @classmethod
    def calibrate(
        cls,
        *,
        epsilon: float,
        delta: float,
        num_examples: int,
        expected_batch_size: int,
        epochs: float | None = None,
        num_steps: int | None = None,
        sampling: str = "poisson",
        noise: NoiseMechanism | None = None,
        adjacency: str = "zero_out",
    ) -> "PrivacyPlan":
        """Returns the plan with the smallest σ that keeps (ε, δ).

        Args:
            epsilon: ε > 0 to keep; the plan's own ε is at most 1 % below it.
            delta: δ in (0, 1).
            num_examples: N.
            expected_batch_size: B.
            epochs: Passes of ⌈N/B⌉ updates, > 0; this or `num_steps`.
            num_steps: Updates; this or `epochs`.
            sampling: See the class.
            noise: See the class; None is `Independent()`.
            adjacency: See the class.

        Warns:
            UserWarning: if `delta` is above 1/`num_examples`.

        Raises:
            ValueError: for an argument out of range, for both or neither of
                `epochs` and `num_steps`, or where no accountant supports the
                combination.
        """
        _validate.positive(epsilon=epsilon)
        _validate.open_unit(delta=delta)
        if (epochs is None) == (num_steps is None):
            raise ValueError(
                "Give one of `epochs` and `num_steps`. Received: "
                f"epochs={epochs!r}, num_steps={num_steps!r}."
            )
        _validate.positive_integer(
            num_examples=num_examples, expected_batch_size=expected_batch_size
        )
        if delta * num_examples > 1:
            warnings.warn(
                f"delta={delta:g} is more than 1/num_examples = "
                f"{1 / num_examples:.3g}: publishing one example in the clear "
                "would satisfy such a promise. Choose delta well below it.",
                stacklevel=2,
            )
        if epochs is not None:
            _validate.positive(epochs=epochs)
            steps_per_epoch = math.ceil(num_examples / expected_batch_size)
            num_steps = max(1, math.ceil(epochs * steps_per_epoch))
        plan = cls(
            noise_multiplier=1.0,
            expected_batch_size=expected_batch_size,
            num_examples=num_examples,
            num_steps=num_steps,
            sampling=sampling,
            noise=Independent() if noise is None else noise,
            delta=delta,
            adjacency=adjacency,
        )
        if plan.noise.correlated and sampling == "poisson":
            warnings.warn(
                f"noise={plan.noise!r} with sampling='poisson' is charged as "
                "if an example took part in every update, without "
                "amplification: much noise. Choose sampling='shuffled', or "
                "'cyclic_poisson' with banded noise.",
                stacklevel=2,
            )
        sigma = calibration.smallest_noise_multiplier(
            lambda s: dataclasses.replace(plan, noise_multiplier=s).epsilon(),
            float(epsilon),
        )
        return dataclasses.replace(plan, noise_multiplier=sigma)

    def epsilon(
        self, steps: int | None = None, delta: float | None = None
    ) -> float:
        """Returns ε after `steps` updates of one unbroken run.

        Args:
            steps: Updates, >= 0; None is `num_steps`.
            delta: δ in (0, 1); None is the plan's.

        Raises:
            ValueError: if something is missing, or no accountant supports
                this sampling with this noise and adjacency.
        """
        return compose.epsilon_of_runs(
            [(self, self._steps(steps))], self._delta(delta)
        )

    def event(self, steps: int | None = None) -> Any:
        """Returns the `dp_accounting.DpEvent` of the first `steps` updates.

        Its noise multipliers are noise over the sensitivity of one
        participation under the plan's adjacency.

        Args:
            steps: Updates, >= 0; None is `num_steps`.

        Raises:
            ValueError: if something is missing or the combination can't be
                accounted: to be asked before training.
        """
        return events.to_event(events.releases(self, self._steps(steps)))

    def statement(
        self, steps: int | None = None, delta: float | None = None
    ) -> str:
        """Returns the guarantee in words; see `epsilon` for the arguments."""
        return statement.of_plan(self, self._steps(steps), self._delta(delta))

    # -- data ---------------------------------------------------------------

    def batches(
        self,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        *,
        steps: int | None = None,
        seed: int | None = None,
        map_fn: Callable[..., Any] | None = None,
    ) -> "tf.data.Dataset":
        """Returns sampled batches, for `fit` of a privatized model.

        Args:
            x: Array or structure of arrays, of `num_examples` rows.
            y: Targets, of as many rows, or None.
            sample_weight: Weights of the loss, likewise.
            steps: Updates in one pass, >= 1; default ⌈N/B⌉.
            seed: For tests: whoever knows it knows who took part when.
            map_fn: Augments one example, (x), (x, y) or all three.

        Privacy, errors and more: see `data.sampling.batches`.
        """
        from tf_dpadaptive.data import sampling

        return sampling.batches(
            self, x, y, sample_weight, steps=steps, seed=seed, map_fn=map_fn
        )

    # -- serialisation ------------------------------------------------------

    def get_config(self) -> dict[str, Any]:
        """Returns the fields; the noise as Keras serialises it."""
        config = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
        }
        config["noise"] = keras.saving.serialize_keras_object(self.noise)
        return config

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "PrivacyPlan":
        """Returns the plan that `get_config` described."""
        config = dict(config)
        if isinstance(config.get("noise"), dict):
            config["noise"] = keras.saving.deserialize_keras_object(
                config["noise"]
            )
        return cls(**config)

    # -- what is missing ----------------------------------------------------

    def _examples(self) -> int:
        if self.num_examples is None:
            raise ValueError(
                "The plan has no `num_examples`: how likely an example is to "
                "be sampled is not known. Received: num_examples=None."
            )
        return self.num_examples

    def _steps(self, steps: int | None) -> int:
        if steps is None:
            steps = self.num_steps
        if steps is None:
            raise ValueError(
                "The plan has no `num_steps`: give `steps`. Received: "
                "steps=None."
            )
        return steps

    def _delta(self, delta: float | None) -> float:
        if delta is None:
            delta = self.delta
        if delta is None:
            raise ValueError(
                "The plan has no `delta`: give it. Received: delta=None."
            )
        return delta
