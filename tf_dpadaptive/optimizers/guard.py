"""The guard: a Keras optimizer that applies nothing but privatized gradients.

Every way into a Keras optimizer raises unless the private step itself calls it.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, NoReturn

import keras
import tensorflow as tf

from tf_dpadaptive import _validate

#: Keras arguments that would break or blur the guarantee, and why.
REFUSED_ARGUMENTS = {
    "clipnorm": "it reads like the private clip; use `l2_norm_clip`",
    "clipvalue": "it reads like the private clip; use `l2_norm_clip`",
    "global_clipnorm": "it reads like the private clip; use `l2_norm_clip`",
    "loss_scale_factor": "the private clip must see unscaled gradients",
    "gradient_accumulation_steps": (
        "noise would be added to every micro-step; use `microbatch_size` of "
        "`privatize`, which bounds memory and changes nothing else"
    ),
}


SMALLEST_CLIP_NORM = _validate.SMALLEST_CLIP_NORM
validate_clip_norm = _validate.clip_norm


class GuardedOptimizer(keras.optimizers.Optimizer):
    """Keras' optimizer with every entry for raw gradients closed."""

    #: Attributes from which noise, sensitivity and ledger are computed once.
    fixed: ClassVar[tuple[str, ...]] = ("plan", "l2_norm_clip")

    def __setattr__(self, name: str, value: Any) -> None:
        """Refuses to change what the guarantee was computed from."""
        if name in self.fixed and name in vars(self):
            raise AttributeError(
                f"`{name}` of {type(self).__name__} is fixed: noise, "
                "sensitivity and ledger are computed from it, and a compiled "
                f"step would not see the change. Received: {name}={value!r}. "
                "Make a new optimizer and call `compile`."
            )
        super().__setattr__(name, value)

    def __init__(self, learning_rate: Any, **kwargs: Any) -> None:
        super().__init__(learning_rate=learning_rate, **kwargs)
        self._in_private_step = False
        self._estimates: Sequence[Mapping[int, tf.Tensor]] = ()
        self._penalties: Mapping[int, tf.Tensor] = {}

    @contextlib.contextmanager
    def _private_step(
        self,
        estimates: Sequence[Mapping[int, tf.Tensor]],
        penalties: Mapping[int, tf.Tensor],
    ) -> Iterator[None]:
        self._in_private_step = True
        self._estimates, self._penalties = estimates, penalties
        try:
            yield
        finally:
            self._in_private_step = False
            self._estimates, self._penalties = (), {}

    def _require_private_step(self, entry: str) -> None:
        if not self._in_private_step:
            raise RuntimeError(
                f"{type(self).__name__}.{entry} received gradients that did "
                "not come through the private step: applying them would train "
                "without clipping and noise. Call "
                "`model = tf_dpadaptive.privatize(model)`, then "
                "`model.compile(optimizer, ...)` and `model.fit(...)`."
            )

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        """Raises unless the private step calls it."""
        self._require_private_step("apply")
        super().apply(grads, trainable_variables)

    def apply_gradients(self, grads_and_vars: Any) -> Any:
        """Raises: gradients come through the private step only."""
        self._require_private_step("apply_gradients")
        return super().apply_gradients(grads_and_vars)

    def stateless_apply(
        self,
        optimizer_variables: Any,
        grads: Any,
        trainable_variables: Any,
    ) -> NoReturn:
        """Raises: gradients come through the private step only."""
        self._in_private_step = False
        self._require_private_step("stateless_apply")
        raise AssertionError

    def _backend_apply_gradients(
        self, grads: Any, trainable_variables: Any
    ) -> None:
        self._require_private_step("_backend_apply_gradients")
        super()._backend_apply_gradients(grads, trainable_variables)

    def _backend_update_step(
        self, grads: Any, trainable_variables: Any, learning_rate: Any
    ) -> None:
        self._require_private_step("_backend_update_step")
        super()._backend_update_step(grads, trainable_variables, learning_rate)

    def load_own_variables(self, store: Any) -> None:
        """Loads the state; raises where Keras would only warn and go on."""
        if len(store.keys()) != len(self.variables):
            raise ValueError(
                f"The saved state of {self.name} holds {len(store.keys())} "
                f"variables, but this optimizer has {len(self.variables)}. "
                "Going on would restart its step count under a used plan. "
                "Save the model as .keras, or use `checkpoint.save` and "
                "`restore`; to load weights alone, load them before `compile`."
            )
        super().load_own_variables(store)
