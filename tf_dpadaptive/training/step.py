"""The private step: joins engine, noise and rule. Everything else is elsewhere.

Raw quantities live between the engine and `finish`; what is shown of them
(loss and metrics of `fit`) is not covered by ε and outlives no epoch.
"""

from typing import Any

import tensorflow as tf

from tf_dpadaptive.batch import Batch
from tf_dpadaptive.clipping.engine import Chunk
from tf_dpadaptive.clipping.example import penalty_gradients, public_gradient
from tf_dpadaptive.training import diagnostics
from tf_dpadaptive.training.finish import finish
from tf_dpadaptive.training.shown import show
from tf_dpadaptive.training.weight_state import advance_weight_state


def private_step(model: Any, batch: Batch) -> dict[str, Any]:
    """Takes one update of a privatized model; returns Keras' logs.

    Args:
        model: A privatized, compiled, prepared model.
        batch: Its rows; padding contributes nothing.

    Privacy: one call of `optimizer.release`, whatever the batch holds.
    """
    setup, optimizer = model.private.setup, model.optimizer
    example = setup.example
    optimizer.observe(lambda public: public_gradient(model, public))
    values, geometry = example.values(), optimizer.geometry()
    rows = Chunk(
        batch.without_none(), batch.real(), example.draw_seeds(batch.size)
    )
    clip_norm = tf.convert_to_tensor(optimizer.clip_norm(), tf.float32)
    clipped = setup.clipped_sum(values, rows, clip_norm, geometry)
    penalties = penalty_gradients(model)
    advance_weight_state(model, setup, batch)
    # The privacy boundary lies in there.
    finish(model, clipped.total, geometry, penalties)
    logs = show(model, batch, clipped)
    if model.private.diagnostics:
        logs = {**logs, **diagnostics.of_step(batch, clipped, clip_norm)}
    return logs
