"""The per-example losses of a batch, from the outputs of one batched forward.

Each example's own outputs go, as a batch of one, through the model's compiled
loss (or its own `compute_loss`): masks, sequence means, sample weights, several
outputs and loss weights come out as they do for that example alone.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf
from keras.src import backend

from tf_dpadaptive.batch import Batch
from tf_dpadaptive.clipping.engine import Chunk
from tf_dpadaptive.clipping.example import ExampleLoss, without_regularizers
from tf_dpadaptive.clipping.layerwise.rowwise import over_rows
from tf_dpadaptive.clipping.randomness import Draws, layer_randomness


class OutputLosses(NamedTuple):
    """Losses of a batch and their gradients with respect to its outputs.

    Attributes:
        losses: float32 (n,).
        gradients: One tensor a float output, in flat order: row i holds the
            gradient of the loss of example i; None where it does not depend
            on it.
        counters: Additive metric variables, (n, ...), counted from zero.
    """

    losses: tf.Tensor
    gradients: list[tf.Tensor | None]
    counters: list[tf.Tensor]


def float_outputs(outputs: Any) -> list[tf.Tensor]:
    """Returns the outputs that can have a gradient, in flat order."""
    return [t for t in tf.nest.flatten(outputs) if t.dtype.is_floating]


class LossOfOutputs:
    """The loss of one example as a function of its outputs alone.

    Args:
        example: The model's per-example loss.
        values: The trainable variables' values.
        outputs: The outputs of a batch.
        masks: Their Keras masks, by flat position.
        chunk: The batch.
        draws: The random numbers of the forward, which it has used up.
    """

    def __init__(
        self,
        example: ExampleLoss,
        values: Sequence[tf.Tensor],
        outputs: Any,
        masks: dict[int, tf.Tensor],
        chunk: Chunk,
        draws: Draws,
    ) -> None:
        self._example = example
        self._values = list(values)
        self._draws = draws
        self.rows = (outputs, masks, chunk.batch, list(chunk.seeds))
        self.used: set[int] = set()
        self.connected: list[bool] = []

    def __call__(self, row: Any) -> tuple[tf.Tensor, Any, Any]:
        """Returns loss, gradients and counters of one row of `rows`."""
        example, model = self._example, self._example.model
        outputs, masks, values, seeds = row
        batch = Batch(*values).as_batch_of_one()
        outputs = tf.nest.map_structure(_one, outputs)
        flat = tf.nest.flatten(outputs)
        for i, mask in masks.items():
            backend.set_keras_mask(flat[i], _one(mask))
        sources = float_outputs(outputs)
        mapping = [
            *zip(model.trainable_variables, self._values, strict=True),
            *((c, tf.zeros(c.shape, c.dtype)) for c in example.counters),
        ]
        keys = {
            id(state): seed[None]
            for state, seed in zip(example.seed_states, seeds, strict=True)
        }
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch([sources, self._values])
            with (
                without_regularizers(model),
                layer_randomness(self._draws.as_now(keys)),
                keras.StatelessScope(mapping, collect_losses=True) as scope,
            ):
                loss = model._compute_loss(
                    x=batch.x,
                    y=batch.y,
                    y_pred=outputs,
                    sample_weight=batch.sample_weight,
                    training=True,
                )
        found = tape.gradient(loss, [*sources, *self._values])
        gradients = found[: len(sources)]
        self.used = {
            i for i, g in enumerate(found[len(sources) :]) if g is not None
        }
        self.connected = [g is not None for g in gradients]
        return (
            tf.cast(loss, tf.float32),
            [tf.squeeze(g, 0) for g in gradients if g is not None],
            [scope.get_current_value(c) for c in example.counters],
        )

    def all_rows(self, *, looped: bool) -> OutputLosses:
        """Returns the losses of all rows.

        Args:
            looped: One row after the other, instead of all at once.
        """
        losses, found, counters = over_rows(self, self.rows, looped=looped)
        left = iter(found)
        gradients = [next(left) if c else None for c in self.connected]
        return OutputLosses(losses, gradients, counters)


def _one(tensor: tf.Tensor) -> tf.Tensor:
    return tf.expand_dims(tensor, 0)
