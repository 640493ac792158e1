"""Norms of per-example gradients: to look at on public data, never private."""

from typing import Any

import numpy as np
import tensorflow as tf

from tf_dpadaptive.batch import Batch
from tf_dpadaptive.clipping.example import ExampleLoss


def nonprivate(model: Any, *examples: Any) -> np.ndarray:
    """Returns the norms of examples' gradients. NOT PRIVATE.

    Args:
        model: A compiled model.
        *examples: Inputs, labels and, where there are, weights: (structures
            of) arrays of shape (n, ...).

    Returns:
        float32 norms before clipping, shape (n,).

    Privacy: none. These are raw gradients: ask for them on public data only.
    """
    example = ExampleLoss(model)
    values = example.values()

    def norm(row: Any) -> tf.Tensor:
        row = Batch(*row).without_none()
        seeds = [tf.zeros([2], tf.int64) for _ in example.seed_states]
        gradients = example(values, row, seeds).gradients
        return tf.linalg.global_norm(list(gradients.values()))

    def norms(rows: Any) -> tf.Tensor:
        return tf.map_fn(norm, rows, fn_output_signature=tf.float32)

    rows = tf.nest.map_structure(tf.constant, examples)
    return tf.function(norms)(rows).numpy()
