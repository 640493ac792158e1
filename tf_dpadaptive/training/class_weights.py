"""Class weights, folded into sample weights before Keras sees them.

Keras refuses both at once, and takes class weights of one batch's own.
"""

import inspect
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_dpadaptive.batch import Batch
from tf_dpadaptive.training.feeding import as_batch


def fold_arguments(
    x: Any, y: Any, arguments: dict[str, Any]
) -> tuple[Any, dict[str, Any]]:
    """Folds class weights where Keras would not do it rightly by itself.

    Args:
        x: Inputs as `fit` takes them.
        y: Targets.
        arguments: The other arguments of `fit`.

    Returns:
        x and the arguments; None stands for neither weight.
    """
    arguments = dict(arguments)
    weight = arguments.pop("sample_weight", None)
    classes = arguments.pop("class_weight", None)
    if isinstance(x, keras.utils.PyDataset) or inspect.isgenerator(x):
        given = {"sample_weight": weight, "class_weight": classes}
    else:
        x, weight = fold_class_weight(x, y, weight, classes)
        given = {"sample_weight": weight}
    arguments |= {k: v for k, v in given.items() if v is not None}
    return x, arguments


def fold_class_weight(
    x: Any, y: Any, sample_weight: Any, class_weight: dict[int, float] | None
) -> tuple[Any, Any]:
    """Folds class weights into sample weights.

    Args:
        x: Inputs as `fit` takes them, a dataset of batches, or a `Batch`.
        y: Targets, where `x` is no dataset.
        sample_weight: Weights likewise.
        class_weight: Weight of each class number; classes left out have 1.

    Returns:
        x and sample_weight with the class weights inside.
    """
    if class_weight is None:
        return x, sample_weight
    table = _table(class_weight)

    def weigh(*element: Any) -> Batch:
        batch = as_batch(element[0] if len(element) == 1 else element)
        weight = _weights_of(batch.y, table)
        return batch._replace(sample_weight=_times(weight, batch.sample_weight))

    if isinstance(x, Batch):
        return weigh(x), sample_weight
    if isinstance(x, tf.data.Dataset):
        return x.map(weigh), sample_weight
    weight = _weights_of(y, table).numpy()
    return x, _times(weight, sample_weight)


def _table(class_weight: dict[int, float]) -> tf.Tensor:
    if not all(isinstance(label, (int, np.integer)) for label in class_weight):
        raise ValueError(
            "`class_weight` must give a weight to each class number. Received: "
            f"class_weight={class_weight!r}."
        )
    table = np.ones(max(class_weight, default=0) + 1, np.float32)
    for label, weight in class_weight.items():
        table[int(label)] = weight
    return tf.constant(table)


def _weights_of(y: Any, table: tf.Tensor) -> tf.Tensor:
    """Returns float32 (n,): the weights of the rows' classes."""
    if y is None:
        raise ValueError(
            "`class_weight` needs targets `y` to look classes up in. Received: "
            "y=None."
        )
    if tf.nest.is_nested(y) and not _is_list_of_numbers(y):
        raise ValueError(
            "`class_weight` works with a single output. Received: targets "
            f"with {len(tf.nest.flatten(y))} parts. Use `sample_weight`."
        )
    y = tf.convert_to_tensor(y)
    if y.shape.rank not in (1, 2):
        raise ValueError(
            "`class_weight` needs targets of shape (n,), (n, 1) or, one-hot, "
            f"(n, classes). Received: targets of shape {y.shape}."
        )
    one_hot = y.shape.rank == 2 and y.shape[-1] not in (1, None)
    labels = tf.argmax(y, -1) if one_hot else tf.reshape(y, [-1])
    labels = tf.cast(labels, tf.int32)
    inside = (labels >= 0) & (labels < tf.shape(table)[0])
    found = tf.gather(table, tf.where(inside, labels, 0))
    return tf.where(inside, found, 1.0)


def _is_list_of_numbers(y: Any) -> bool:
    return isinstance(y, list) and all(np.ndim(part) == 0 for part in y)


def _times(weight: Any, sample_weight: Any) -> Any:
    if sample_weight is None:
        return weight
    if isinstance(sample_weight, tf.Tensor):
        extra = sample_weight.shape.rank - 1
        shape = tf.concat([tf.shape(weight), tf.ones(extra, tf.int32)], 0)
        return tf.reshape(weight, shape) * tf.cast(sample_weight, weight.dtype)
    given = np.asarray(sample_weight)
    return np.reshape(weight, [-1] + [1] * (given.ndim - 1)) * given
