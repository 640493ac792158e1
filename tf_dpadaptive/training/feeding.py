"""What `fit` and `train_on_batch` are given, made ready for the private step.

Class weights are folded into sample weights before Keras sees them (Keras
refuses both at once), the batch size of arrays becomes B, and it is found out
whether the batches were sampled by the plan.
"""

import inspect
import warnings
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.trainers.data_adapters import data_adapter_utils

from tf_dpadaptive.batch import Batch
from tf_dpadaptive.plan import PrivacyPlan


def as_batch(data: Any) -> Batch:
    """Returns the batch of a Keras step, as tensors.

    Args:
        data: A `Batch`, or (x, y, sample_weight) as Keras takes it; x may
            itself be a `Batch` (of `train_on_batch`).
    """
    if not isinstance(data, Batch):
        data = Batch(*data_adapter_utils.unpack_x_y_sample_weight(data))
    if isinstance(data.x, Batch):
        data = data.x
    return tf.nest.map_structure(
        lambda t: None if t is None else tf.convert_to_tensor(t), data
    )


def check_present(x: Any, y: Any = None) -> None:
    """Refuses no data, no rows, and targets that are not one a row.

    Args:
        x: Inputs, as `fit` or `train_on_batch` takes them.
        y: Targets, where `x` is arrays.
    """
    if x is None:
        raise ValueError(
            "`x` must hold the training data: `plan.batches(...)`, arrays or "
            "a dataset. Received: x=None."
        )
    if not is_arrays(x):
        return
    parts = [t for t in tf.nest.flatten([x, y]) if hasattr(t, "shape")]
    sizes = {int(t.shape[0]) if len(t.shape) else 0 for t in parts}
    if 0 in sizes or len(sizes) > 1:
        raise ValueError(
            "`x` and `y` must have the same number of rows, at least one. "
            f"Received: parts of {sorted(sizes)} rows."
        )


def check_rows(rows: int, plan: PrivacyPlan, *, padded: bool = False) -> None:
    """Refuses a batch beyond the plan's fixed shape, warns of one not of B.

    Args:
        rows: Rows of the batch.
        plan: The optimizer's plan.
        padded: Whether some rows may be padding, so that `rows` says nothing
            about the number of examples.
    """
    if rows > plan.max_batch_size:
        raise ValueError(
            f"A batch of {rows} rows is larger than the plan's fixed shape of "
            f"{plan.max_batch_size} rows (expected_batch_size="
            f"{plan.expected_batch_size}). Use `plan.batches(...)`, or a "
            "smaller `batch_size`."
        )
    if rows != plan.expected_batch_size and not padded:
        warnings.warn(
            f"Batches of {rows} rows were given, but the plan divides by "
            f"expected_batch_size={plan.expected_batch_size}: gradients are "
            "scaled by the ratio, and epsilon holds only if batches were "
            "sampled as the plan says. Use `plan.batches(...)`.",
            stacklevel=4,
        )


def rows_within(batch: Batch, plan: PrivacyPlan) -> tf.Operation | None:
    """Returns what must run before a batch of unknown size is trained on.

    Args:
        batch: The batch of a step.
        plan: The optimizer's plan.

    Raises:
        ValueError: if the batch is known to be too large.
    """
    rows = tf.nest.flatten(batch.x)[0].shape[0]
    if rows is not None:
        check_rows(rows, plan, padded=True)
        return None
    return tf.debugging.assert_less_equal(
        batch.size,
        plan.max_batch_size,
        message="A batch is larger than the plan's fixed shape of "
        f"{plan.max_batch_size} rows (`max_batch_size`).",
    )


def plan_reasons(sampler: Any, plan: PrivacyPlan) -> list[str]:
    """Returns why batches of a sampler are not those of a plan."""
    if sampler is None or sampler.plan == plan:
        return []
    return [
        "The batches were sampled under another plan than the optimizer's: "
        f"{sampler.plan} against {plan}. Make them with the optimizer's own "
        "`plan.batches`."
    ]


def checked_batches(
    x: Any, batch_size: int | None, plan: PrivacyPlan
) -> tuple[Any, int | None]:
    """Returns data for `fit` and its batch size, checked and warned of.

    Args:
        x: What `fit` was given, not sampled by the plan.
        batch_size: What the user asked for; None takes B for arrays.
        plan: The optimizer's plan.
    """
    if is_arrays(x):
        size = batch_size or plan.expected_batch_size
        check_rows(size, plan)
        return x, size
    if not isinstance(x, tf.data.Dataset):
        return x, batch_size
    spec = x.element_spec
    rows = _static_rows(spec)
    if rows is not None:
        check_rows(rows, plan, padded=isinstance(spec, Batch))
        return x, batch_size

    def within(*element: Any) -> Any:
        element = element if type(spec) is tuple else element[0]
        checked = rows_within(as_batch(element), plan)
        with tf.control_dependencies([checked]):
            return tf.nest.map_structure(
                lambda t: None if t is None else tf.identity(t), element
            )

    # Here, since there are no assertions under XLA.
    return x.map(within), batch_size


def without_padding(batch: Batch) -> Batch:
    """Drops padding rows; a batch of nothing else keeps one of them.

    Only the cost depends on the number of rows, not what is released.
    """
    real = tf.where(batch.real())[:, 0]
    keep = tf.cond(
        tf.size(real) > 0,
        lambda: real,
        lambda: tf.zeros([1], tf.int64),
    )
    return tf.nest.map_structure(
        lambda t: None if t is None else tf.gather(t, keep), batch
    )


def updates_of_a_pass(
    x: Any, batch_size: int | None, kwargs: Any
) -> int | None:
    """Returns the updates of one epoch, where they are known beforehand.

    Args:
        x: What `fit` was given.
        batch_size: Rows a batch of arrays.
        kwargs: The other arguments of `fit`.
    """
    if isinstance(x, tf.data.Dataset):
        steps = int(x.cardinality())
        return steps if steps >= 0 else None
    if is_arrays(x) and batch_size:
        leaf = tf.nest.flatten(x)[0]
        if not hasattr(leaf, "__len__"):
            return None
        rows = len(leaf) * (1 - (kwargs.get("validation_split") or 0.0))
        return -(-int(rows) // batch_size)
    return None


def is_arrays(x: Any) -> bool:
    """Whether `x` holds arrays or tensors (structures of them included)."""
    leaves = tf.nest.flatten(x)
    return bool(leaves) and all(
        tf.is_tensor(leaf)
        or hasattr(leaf, "__array__")
        or isinstance(leaf, (str, bytes, int, float))
        for leaf in leaves
    )


def _static_rows(spec: Any) -> int | None:
    leaves = [part for part in tf.nest.flatten(spec) if hasattr(part, "shape")]
    shape = leaves[0].shape if leaves else tf.TensorShape(None)
    return shape[0] if shape.rank else None


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
    table = np.ones(max(class_weight) + 1, np.float32)
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
