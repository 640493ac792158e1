r"""The base of every DP optimizer: all Keras glue, no algorithm.

An optimizer is three small answers (the seams), each a pure function of state
that is already private:

    geometry()                       coordinates in which gradients are clipped
    releases(mean)                   what is released of the clipped mean, and
                                     with which sensitivity
    rule(lr, t, *estimates, *slots)  one variable: (what to subtract, new slots)

The training step calls `next_noise`, then `release` (÷B, releases, + noise: the
privacy boundary) and `update` (un-scale, add data-free penalties, rule, Keras'
own weight decay, EMA, constraints). No other way into the optimizer applies a
gradient: every public entry of a Keras optimizer raises, and a model whose
ledger has not booked what these did states no ε.
"""

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf
from keras import ops

from tf_dpadaptive import _validate
from tf_dpadaptive.accounting.ledger import Ledger
from tf_dpadaptive.clipping.geometry import Geometry
from tf_dpadaptive.noise.keys import SecretKeys
from tf_dpadaptive.optimizers.guard import (
    REFUSED_ARGUMENTS,
    validate_clip_norm,
)
from tf_dpadaptive.optimizers.seams import Seams
from tf_dpadaptive.plan import PrivacyPlan


class SamplingPlace:
    """Where the run of an optimizer stands in its order of sampling.

    Plain Python on purpose: the order is a secret that no file may hold.

    Attributes:
        order: `Sampler.state()` with the position reached, or None.
    """

    def __init__(self) -> None:
        self.order: dict[str, Any] | None = None


class DPOptimizer(Seams):
    """Base class of optimizers that only ever see privatized gradients.

    Args:
        learning_rate: Float > 0, a schedule, or a callable, as in Keras.
        l2_norm_clip: ζ > 0: bound on the norm of one example's gradient.
        plan: The `PrivacyPlan` that fixes σ, B, sampling and noise.
        seed: None, or a whole number for tests (a known seed is no privacy).
        ledger: Updates booked by earlier runs of the model (from `get_config`).
        **kwargs: Arguments of `keras.optimizers.Optimizer` that only process
            what is already private: `weight_decay`, `use_ema`, `ema_momentum`,
            `ema_overwrite_frequency`, `name`.

    Raises:
        ValueError: for invalid numbers, and for Keras arguments that would
            break the guarantee, all of them at once.

    Privacy: each update releases the clipped mean once, noised; see `plan`.
        Slots are functions of released values only.
    """

    def __init__(
        self,
        learning_rate: Any,
        l2_norm_clip: float | None,
        plan: PrivacyPlan | None,
        *,
        seed: int | None = None,
        ledger: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        refused = [
            f"`{name}={kwargs[name]!r}`: {why}."
            for name, why in REFUSED_ARGUMENTS.items()
            if kwargs.get(name) is not None
        ]
        if refused:
            raise ValueError(
                f"{type(self).__name__} refuses these arguments of Keras "
                "optimizers: " + " ".join(refused)
            )
        validate_clip_norm(l2_norm_clip=l2_norm_clip)
        if not isinstance(plan, PrivacyPlan):
            raise TypeError(
                "`plan` must be a PrivacyPlan: make one with "
                "`PrivacyPlan.calibrate(...)`. "
                f"Received: plan={plan!r}."
            )
        if isinstance(learning_rate, int):
            learning_rate = float(learning_rate)
        if isinstance(learning_rate, float):
            _validate.non_negative(learning_rate=learning_rate)
        kwargs.setdefault("name", None)
        super().__init__(learning_rate=learning_rate, **kwargs)
        self.l2_norm_clip = float(l2_norm_clip or 0)
        self.plan = plan
        self.ledger = Ledger.from_config(ledger)
        self.run_id = uuid.uuid4().hex
        self._keys = SecretKeys(seed)
        self.sampling = SamplingPlace()
        self._streams: tuple[Any, ...] = ()

    # ---- the private step ------------------------------------------------

    @property
    def seeded(self) -> bool:
        """Whether the noise comes from a known seed: then it hides nothing."""
        return self._keys.seed is not None

    @property
    def noise_step(self) -> int:
        """How many updates have drawn noise from this optimizer's secret."""
        return int(self._keys.step.numpy())

    def next_noise(self) -> list[list[tf.Tensor]]:
        """Draws the noise of one update and moves the noise step on.

        Returns:
            A list a release: standard noise, one tensor a variable. Empty
            where the plan adds none. As secret as the raw gradients.
        """
        step = self._keys.step.read_value()
        noises: list[list[tf.Tensor]] = []
        if self.plan.noise_multiplier:
            noises = [list(stream.next(step)) for stream in self._streams]
        # No noise is used before the noise step has moved on.
        moved = self._keys.step.assign_add(1, read_value=False)
        with tf.control_dependencies([] if moved is None else [moved]):
            return [[tf.identity(z) for z in noise] for noise in noises]

    def release(
        self,
        clipped_sum: Mapping[int, tf.Tensor],
        noises: Sequence[Sequence[tf.Tensor]] | None = None,
    ) -> list[dict[int, tf.Tensor]]:
        """Divides by B and adds noise.

        Args:
            clipped_sum: Raw sums of clipped contributions, by position.
            noises: What `next_noise` returned for this update; None calls it.

        Returns:
            One noisy dictionary a release. From here on nothing is raw.
        """
        if noises is None:
            noises = self.next_noise()
        mean = {i: s / self.batch_size for i, s in clipped_sum.items()}
        sigma = float(self.plan.noise_multiplier)
        released = []
        for place, query in enumerate(self.releases(mean)):
            if query.sensitivity is None and self.private:
                raise RuntimeError(
                    f"{type(self).__name__} calls itself private, but release "
                    f"{place} has sensitivity=None: it would be raw."
                )
            if sigma == 0.0 or query.sensitivity is None:
                released.append(dict(query.values))
                continue
            noise = noises[place]
            stddev = sigma * query.sensitivity
            released.append(
                {i: v + stddev * noise[i] for i, v in query.values.items()}
            )
        return released

    def update(
        self,
        released: Sequence[Mapping[int, tf.Tensor]],
        geometry: Geometry,
        penalties: Mapping[int, tf.Tensor],
    ) -> None:
        """Updates the weights from released values.

        Args:
            released: What `release` returned.
            geometry: The geometry that the clip used.
            penalties: Gradients of data-free regularisers, by position.
        """
        unscaled = [
            {i: geometry.inverse(i, value) for i, value in values.items()}
            for values in released
        ]
        first = unscaled[0]
        estimates = [*unscaled, *self.extra_estimates(geometry)]
        if self.penalty_in_estimate:
            for i, gradient in penalties.items():
                first[i] = first[i] + gradient if i in first else gradient
            penalties = {}
        variables = self._trainable_variables
        with self._private_step(estimates, penalties):
            self.apply(
                [first[i] for i in sorted(first)],
                [variables[i] for i in sorted(first)],
            )

    # ---- Keras: build and update -----------------------------------------

    def build(self, variables: Sequence[keras.Variable]) -> None:
        """Creates slots and noise streams for the trainable variables."""
        if self.built:
            return
        super().build(variables)
        self._make_state(variables)

    @keras.src.utils.tracking.no_automatic_dependency_tracking
    def _make_state(self, variables: Sequence[keras.Variable]) -> None:
        self._slots = [self.build_slots(v) for v in variables]
        shapes = [tuple(v.shape) for v in variables]
        self._streams = tuple(
            self.plan.noise.stream(
                self._keys,
                shapes,
                num_steps=self.plan.num_steps,
                stream=place,
            )
            for place in range(self.num_releases)
        )

    def update_step(
        self, gradient: Any, variable: Any, learning_rate: Any
    ) -> None:
        """Applies `rule` to one variable; raises outside the private step."""
        self._require_private_step("update_step")
        index = self._get_variable_index(variable)
        slots = self._slots[index]
        estimates = [gradient, *(e[index] for e in self._estimates[1:])]
        delta, new_slots = self.rule(
            ops.cast(learning_rate, "float32"),
            ops.cast(self.iterations + 1, "float32"),
            *estimates,
            *(ops.convert_to_tensor(s) for s in slots),
        )
        for slot, value in zip(slots, new_slots, strict=True):
            self.assign(slot, value)
        if index in self._penalties:
            rate = ops.cast(learning_rate, "float32")
            delta = delta + rate * self._penalties[index]
        self.assign_sub(variable, ops.cast(delta, variable.dtype))

    # ---- the ledger and serialisation ------------------------------------

    def epsilon(self, delta: float | None = None) -> float:
        """Returns ε of all updates that the model's ledger has booked.

        Args:
            delta: δ in (0, 1); None takes the plan's.
        """
        return self.ledger.epsilon(delta)

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments, without seed or secret."""
        config = super().get_config()
        for name in REFUSED_ARGUMENTS:
            config.pop(name, None)
        config["l2_norm_clip"] = self.l2_norm_clip
        config["plan"] = keras.saving.serialize_keras_object(self.plan)
        config["ledger"] = self.ledger.to_config()
        for name in self.hyperparameters:
            attribute = "stability" if name == "epsilon" else name
            config[name] = getattr(self, attribute)
        return config

    @classmethod
    def from_config(
        cls, config: dict[str, Any], custom_objects: Any = None
    ) -> "DPOptimizer":
        """Returns the optimizer that `get_config` described."""
        config = dict(config)
        if isinstance(config.get("plan"), dict):
            config["plan"] = keras.saving.deserialize_keras_object(
                config["plan"], custom_objects=custom_objects
            )
        return super().from_config(config, custom_objects=custom_objects)
