"""Padding and weights survive the preprocessing of keras-hub tasks.

keras-hub maps `preprocess_samples(x, y, sample_weight)` over the dataset given
to `fit`; its preprocessors drop weights and know no padding.
"""

from typing import Any

import keras
import tensorflow as tf

from tf_dpadaptive.batch import Batch


class PrivatePreprocessing:
    """Carries the padding of `Batch` elements past a preprocessor."""

    private_training = True

    def preprocess_samples(
        self,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        padding: Any = None,
    ) -> Any:
        """Preprocesses x and y; keeps weights and padding.

        Args:
            x: Inputs, strings for example; or a `Batch`.
            y: Targets, or None where the preprocessor makes them.
            sample_weight: Weights of the rows; multiplied with those that the
                preprocessor makes.
            padding: bool (n,), True for padding rows; None for plain data.
        """
        if isinstance(x, Batch):
            x, y, sample_weight, padding = x
        made = super().preprocess_samples(x, y)  # type: ignore[misc]
        x, y, weight = keras.utils.unpack_x_y_sample_weight(made)
        if sample_weight is not None:
            weight = _product(weight, sample_weight)
        if padding is None:
            return keras.utils.pack_x_y_sample_weight(x, y, weight)
        return Batch(x, y, weight, padding)


def _product(made: Any, given: Any) -> Any:
    if made is None:
        return given
    given = tf.cast(given, made.dtype)
    extra = max(0, made.shape.rank - given.shape.rank)
    return made * tf.reshape(
        given, tf.concat([tf.shape(given), tf.ones([extra], tf.int32)], 0)
    )
