"""The rules: how a layer's weights turn inputs and output gradients into forms.

A rule is one function. It is given a `Use`, one call of a layer with the
gradient of the loss with respect to what the call computed, and yields, for
each weight of the layer, what the per-example gradients are made of:

    @rule(keras.layers.Dense, before="activation")
    def dense(use):
        yield use.layer.bias, Formed(...)

A rule holds for the very class and for subclasses that change nothing but
their constructor. Everything else is handled by `fallback`.
"""

import dataclasses
import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras
import tensorflow as tf

from tf_dpadaptive.clipping.layerwise.forms import Form


@dataclasses.dataclass
class Use:
    """One call of a layer.

    Attributes:
        layer: The layer.
        args: Positional arguments of the call.
        kwargs: Keyword arguments of the call.
        values: What trainable variables read as, by `id`.
        targets: The float tensors that the call computed: its outputs, or
            what entered the activation.
        gradients: Gradients of the sum of the losses with respect to
            `targets`; None where the loss does not depend on one.
        again: Makes the call once more, with other values for some weights
            (by `id`), and with other inputs if they are given.
    """

    layer: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    values: Mapping[int, tf.Tensor]
    again: Callable[..., Any]
    targets: list[tf.Tensor] = dataclasses.field(default_factory=list)
    gradients: list[tf.Tensor | None] = dataclasses.field(default_factory=list)

    @property
    def inputs(self) -> tf.Tensor:
        """The call's first argument."""
        if self.args:
            return self.args[0]
        return next(iter(self.kwargs.values()))

    def argument(self, name: str) -> Any:
        """An argument of the call, or its default."""
        signature = inspect.signature(type(self.layer).call)
        bound = signature.bind(self.layer, *self.args, **self.kwargs)
        bound.apply_defaults()
        return bound.arguments[name]

    @property
    def gradient(self) -> tf.Tensor:
        """The gradient of the one target, float32."""
        (gradient,) = self.gradients
        return tf.cast(gradient, tf.float32)

    def value(self, variable: keras.Variable) -> tf.Tensor:
        """A weight as the call saw it, float32."""
        value = self.values.get(id(variable))
        if value is None:  # a frozen one
            value = tf.convert_to_tensor(variable.value)
        return tf.cast(value, tf.float32)


Contributions = Iterator[tuple[keras.Variable, Form]]


@dataclasses.dataclass(frozen=True)
class Rule:
    """A rule and where it taps the layer.

    Attributes:
        function: From a `Use` to (variable, form) pairs.
        before: Name of the layer's attribute whose argument is the target
            (an activation), or None for the layer's output.
        whole: The rule accounts for the weights of sublayers too.
    """

    function: Callable[[Use], Contributions]
    before: str | None = None
    whole: bool = False


class NotCovered(Exception):
    """Raised by a rule that does not hold for a particular call."""


_RULES: dict[type, Rule] = {}
_NAMED: dict[str, Rule] = {}
_FAMILIES = (
    "activation",
    "convolution",
    "dense",
    "einsum",
    "embedding",
    "masked_language",
    "normalization",
    "recurrent",
)
# What a subclass may define without changing what the layer computes.
_HARMLESS = {
    "__doc__",
    "__init__",
    "__module__",
    "__annotations__",
    "__firstlineno__",
    "__static_attributes__",
    "_api_export_path",  # of the export decorators of Keras and keras-hub
    "_api_export_symbol_id",
    "get_config",
    "from_config",
}


def rule(
    *layers: type | str, before: str | None = None, whole: bool = False
) -> Callable[[Callable[[Use], Contributions]], Callable[[Use], Contributions]]:
    """Registers a rule.

    Args:
        *layers: Layer classes, or their full names where the package that
            defines them must not be imported.
        before: See `Rule`.
        whole: See `Rule`.
    """

    def register(
        function: Callable[[Use], Contributions],
    ) -> Callable[[Use], Contributions]:
        for layer in layers:
            table: dict[Any, Rule] = (
                _NAMED if isinstance(layer, str) else _RULES
            )
            table[layer] = Rule(function, before, whole)
        return function

    return register


def find_rule(layer: Any) -> Rule | None:
    """Returns the rule that holds for a layer, or None."""
    if getattr(layer, "quantization_mode", None) is not None:
        return None
    for family in _FAMILIES:
        importlib.import_module(f"{__package__}.{family}")
    for cls in type(layer).__mro__:
        name = f"{cls.__module__}.{cls.__qualname__}"
        found = _RULES.get(cls) or _NAMED.get(name)
        if found is not None:
            return found
        if set(vars(cls)) - _HARMLESS:
            return None
    return None
