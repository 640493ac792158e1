"""Calling one layer again, on single examples, as it was called in the pass."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import keras
import tensorflow as tf
from keras.src import backend
from keras.src.backend.common import global_state
from keras.src.backend.common.variables import AutocastScope
from keras.src.layers.layer import CallContext

from tf_dpadaptive.clipping.randomness import (
    Draws,
    current_draws,
    layer_randomness,
)

_CONTEXT = "current_call_ctx"


class Surroundings(NamedTuple):
    """What a call depends on besides its arguments.

    Attributes:
        values: What variables read as, by `id`.
        context: Call-context arguments, such as `training`.
        autocast: Whether a scope that casts weights was open, and its dtype.
        draws: Where random numbers come from.
    """

    values: Mapping[int, Any]
    context: Mapping[str, Any]
    autocast: tuple[bool, str | None]
    draws: Draws

    @classmethod
    def now(cls, values: Mapping[int, Any]) -> "Surroundings":
        """Takes note of the surroundings of the call being made."""
        draws = current_draws()
        if draws is None:
            raise RuntimeError("A call was noted outside of a forward.")
        context = global_state.get_global_attribute(_CONTEXT)
        autocast = global_state.get_global_attribute("autocast_scope")
        return cls(
            dict(values),
            {} if context is None else dict(vars(context)),
            (autocast is not None, getattr(autocast, "dtype", None)),
            draws.as_now(),
        )

    @contextlib.contextmanager
    def again(
        self,
        replaced: Mapping[int, tf.Tensor],
        keys: Mapping[int, tf.Tensor] | None = None,
    ) -> Iterator[None]:
        """Opens the same surroundings, with other values for some variables.

        Args:
            replaced: Values by `id` of the variable.
            keys: Random seeds of the examples of the call; None keeps all.
        """
        context = CallContext(entry_layer=None)
        for name, value in self.context.items():
            if name != "entry_layer":
                context.set_value(name, value)
        saved = global_state.get_global_attribute(_CONTEXT)
        with contextlib.ExitStack() as stack:
            scope = stack.enter_context(keras.StatelessScope())
            stack.enter_context(layer_randomness(self.draws.as_now(keys)))
            scope.state_mapping = {**self.values, **replaced}
            opened, dtype = self.autocast
            if opened:
                stack.enter_context(AutocastScope(dtype))
            global_state.set_global_attribute(_CONTEXT, context)
            try:
                yield
            finally:
                global_state.set_global_attribute(_CONTEXT, saved)


def masks_of(tensors: list[Any]) -> dict[int, tf.Tensor]:
    """Returns the Keras masks of tensors, by position."""
    found = {i: backend.get_keras_mask(t) for i, t in enumerate(tensors)}
    return {i: m for i, m in found.items() if m is not None}
