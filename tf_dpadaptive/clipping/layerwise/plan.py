"""Which layers go by a rule, which by a fallback: found once, while tracing.

Every trainable variable must be read inside a *unit*, a layer whose call is
intercepted and which accounts for the variable. A layer with a rule is the
unit of its own weights. For any other read (and where a rule does not hold) the
innermost enclosing layer with reachable inputs and outputs becomes a unit that
falls back on forming its per-example gradients.
"""

import dataclasses
from typing import Any

import keras

from tf_dpadaptive.clipping.layerwise.registry import Rule, find_rule

WHOLE = (keras.layers.RNN,)
"""Layers that are units with all that is inside."""


class NotLayerwise(ValueError):
    """A model, or a part of it, that the layer-wise engine can't handle."""


@dataclasses.dataclass
class Plan:
    """What the passes so far have taught us about a model.

    Attributes:
        fallbacks: For each layer that falls back, by `id`: the variables it
            accounts for (by `id`) and why.
        opaque: Layers, by `id`, whose inputs and outputs can't be used.
        looped: Units, by name, that are replayed example by example, because
            their replay can't be vectorized.
        row_arguments: Which arguments of a fallback have one row an example,
            by position of the unit.
        changed: Something was learnt since the pass began.
        settled: The trial passes are over.
    """

    fallbacks: dict[int, dict[int, str]] = dataclasses.field(
        default_factory=dict
    )
    opaque: set[int] = dataclasses.field(default_factory=set)
    looped: set[str] = dataclasses.field(default_factory=set)
    row_arguments: dict[int, list[int]] = dataclasses.field(
        default_factory=dict
    )
    changed: bool = False
    settled: bool = False

    @classmethod
    def start(cls, model: keras.Model) -> "Plan":
        """Returns the plan of the first pass."""
        plan = cls()
        for layer in model._flatten_layers():
            if isinstance(layer, WHOLE) and find_rule(layer) is None:
                for variable in layer.trainable_variables:
                    plan.fall_back(layer, variable, "its cell runs in a loop")
        return plan

    def rule(self, layer: Any) -> Rule | None:
        """Returns the rule that this plan applies to a layer."""
        return None if id(layer) in self.fallbacks else find_rule(layer)

    def fall_back(
        self, layer: Any, variable: keras.Variable, reason: str
    ) -> None:
        """Makes a layer account for a variable by the fallback."""
        known = self.fallbacks.setdefault(id(layer), {})
        if id(variable) not in known:
            known[id(variable)] = reason
            self.changed = True

    def climb(self, layer: Any) -> None:
        """Never uses a layer as a unit again."""
        if id(layer) not in self.opaque:
            self.opaque.add(id(layer))
            self.fallbacks.pop(id(layer), None)
            self.changed = True
