"""The proof, while tracing, that no use of a weight is missed.

Inside units a weight reads as a constant, so the tape's gradient of the losses
with respect to the weights themselves must be None, for every weight: what is
left is a use that no unit accounts for, whose norm would be missing, and ε with
it. Such a use makes the layer that reads the weight a unit; if there is no such
layer, the model is refused.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_dpadaptive.clipping.layerwise.plan import NotLayerwise, Plan


class Watched:
    """Weights whose gradients must be None.

    Args:
        tape: The tape that records the pass.
        variables: The trainable variables.
        values: What they read as, outside units.
    """

    def __init__(
        self,
        tape: tf.GradientTape,
        variables: Sequence[keras.Variable],
        values: Sequence[tf.Tensor],
    ) -> None:
        self._variables = list(variables)
        # A function traced before this pass reads the variable itself.
        stored = [v._value for v in variables]
        self.sources = [*values, *stored]
        tape.watch(values)
        for variable in stored:
            tape.watch(variable)

    def leaks(self, gradients: Sequence[Any]) -> list[keras.Variable]:
        """Returns the variables that are used outside units.

        Args:
            gradients: The gradients with respect to `sources`.

        Raises:
            NotLayerwise: if a variable is read behind the pass's back.
        """
        count = len(self._variables)
        for variable, gradient in zip(
            self._variables, gradients[count:], strict=True
        ):
            if gradient is not None:
                raise NotLayerwise(
                    f"Variable {variable.path!r} is read by a function that "
                    "was traced before (a `tf.function` around a layer's "
                    "call, say), so its gradient can't be followed. Remove "
                    "that `tf.function`."
                )
        return [
            variable
            for variable, gradient in zip(
                self._variables, gradients[:count], strict=True
            )
            if gradient is not None
        ]


def learn(
    plan: Plan,
    model: keras.Model,
    leaks: Sequence[keras.Variable],
    reads: Mapping[int, Sequence[Any]],
) -> None:
    """Makes units of the layers that use weights outside units.

    Args:
        plan: The plan to add to.
        model: The model.
        leaks: The variables that are used outside units.
        reads: The layers that read them, by `id` of the variable.

    Raises:
        NotLayerwise: if a use is in no layer that could be a unit.
    """
    for variable in leaks:
        readers = {
            id(layer): layer
            for layer in reads.get(id(variable), ())
            if layer is not None and layer is not model
        }
        before = plan.changed
        plan.changed = False
        for layer in readers.values():
            plan.fall_back(
                layer,
                variable,
                f"it reads {variable.path!r} and has no rule for it",
            )
        found = plan.changed
        plan.changed = plan.changed or before
        if not found:
            raise NotLayerwise(
                f"Variable {variable.path!r} is used outside the layers of "
                f"the model {model.name!r}, in the model's own `call` or in "
                "its loss."
            )
