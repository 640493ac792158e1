"""State that the forward changes as a function of weights alone.

Spectral normalization is the example: its power iteration, and the kernel that
it divides by it. Such state costs no privacy; it is advanced once an update,
before the weights move, by a forward on a row of zeros.
"""

from typing import Any

import keras
import tensorflow as tf

from tf_dpadaptive.batch import Batch


def advance_weight_state(model: keras.Model, setup: Any, batch: Batch) -> None:
    """Assigns what one training forward would have assigned.

    Args:
        model: The privatized model.
        setup: Its prepared engine; `probe.weight_state` names the variables.
        batch: A batch whose shapes are used; none of its values.
    """
    if not setup.probe.weight_state:
        return
    blank = tf.nest.map_structure(
        lambda t: tf.zeros([1, *t.shape[1:]], t.dtype), batch.x
    )
    with keras.StatelessScope() as scope:
        if model._call_has_training_arg:
            model(blank, training=True)
        else:
            model(blank)
    for variable in setup.probe.weight_state:
        variable.assign(scope.get_current_value(variable))
