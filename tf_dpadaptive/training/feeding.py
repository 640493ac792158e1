"""What `fit` and `train_on_batch` are given, made ready for the private step.

The batch size of arrays becomes B, and what does not fit the plan is refused
while nothing has changed yet.
"""

import contextlib
import math
import warnings
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf
from keras.src.trainers.data_adapters import data_adapter_utils

from tf_dpadaptive.batch import Batch
from tf_dpadaptive.plan import PrivacyPlan

#: How the assertion begins; TensorFlow escapes what follows.
_TOO_LARGE = "A batch is larger than the plan"


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


def check_present(x: Any, y: Any = None, sample_weight: Any = None) -> None:
    """Refuses no data, no rows, and what is not one a row.

    Args:
        x: Inputs, as `fit` or `train_on_batch` takes them.
        y: Targets, where `x` is arrays.
        sample_weight: Weights of the loss, likewise.
    """
    if x is None:
        raise ValueError(
            "`x` must hold the training data: `plan.batches(...)`, arrays or "
            "a dataset. Received: x=None."
        )
    if isinstance(x, tf.RaggedTensor) or not tf.nest.flatten(x):
        raise ValueError(
            "`x` must be arrays of rows of one shape; pad ragged rows. "
            f"Received: x of type {type(x).__name__}."
        )
    if not is_arrays(x):
        return
    parts = tf.nest.flatten([x, y, sample_weight])
    parts = [t for t in parts if hasattr(t, "shape")]
    sizes = {int(t.shape[0]) if len(t.shape) else 0 for t in parts}
    if 0 in sizes or len(sizes) > 1:
        raise ValueError(
            "`x`, `y` and `sample_weight` must have the same number of rows, "
            f"at least one. Received: parts of {sorted(sizes)} rows."
        )


def check_targets(model: keras.Model, batch: Batch) -> None:
    """Refuses a batch without the targets that the compiled loss needs."""
    own = type(model).compute_loss is not keras.Model.compute_loss
    if batch.y is None and model._compile_loss is not None and not own:
        raise ValueError(
            "The compiled loss compares outputs with targets, and the data "
            "holds none. Received: y=None. Give them: `plan.batches(x, y)`, "
            "`fit(x, y)`, or a dataset of (x, y)."
        )


def check_examples(
    x: Any, plan: PrivacyPlan, validation_split: float | None = None
) -> None:
    """Refuses arrays that are not the data set that the plan speaks of.

    Args:
        x: What `fit` was given.
        plan: The optimizer's plan.
        validation_split: Share of the rows that Keras takes out.

    Raises:
        ValueError: if the rows to train on are not `num_examples`.
    """
    leaf: Any = tf.nest.flatten(x)[0] if is_arrays(x) else None
    if plan.num_examples is None or not hasattr(leaf, "__len__"):
        return
    split = validation_split or 0.0
    rows = math.floor(len(leaf) * (1.0 - split))
    if rows != plan.num_examples:
        left = f" after validation_split={split:g}" if split else ""
        raise ValueError(
            "The data must have the plan's number of examples: its ε is for "
            f"batches that are drawn out of so many. Received: {rows} rows"
            f"{left}, num_examples={plan.num_examples}. Make the plan for "
            "these data" + (", and split before." if split else ".")
        )


@contextlib.contextmanager
def named_if_too_large(plan: PrivacyPlan) -> Iterator[None]:
    """Makes the assertion of `checked_batches` a ValueError that says why."""
    try:
        yield
    except tf.errors.InvalidArgumentError as error:
        if _TOO_LARGE not in str(error):
            raise
        raise ValueError(
            f"{_TOO_LARGE}'s fixed shape of {plan.max_batch_size} rows "
            f"(expected_batch_size="
            f"{plan.expected_batch_size}). Use `plan.batches(...)`, or "
            "smaller batches."
        ) from None


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
        message=f"{_TOO_LARGE}'s fixed shape of {plan.max_batch_size} rows.",
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
