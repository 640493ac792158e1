"""Do the rows of a batch meet in the model, or only in the mean of the losses?

Per-example gradients are taken on batches of one, where a layer that mixes the
batch has nothing to mix with: it would be trained to do something else than it
does in use. So such models are refused, and losses that mix are spoken of.

The model is tried out once on made-up rows: of four rows one is changed, and
the outputs of the others must stay. No example is read.
"""

import contextlib
import functools
import logging
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_dpadaptive.batch import Batch
from tf_dpadaptive.clipping.example import seed_generators
from tf_dpadaptive.clipping.probe import row_specs

logger = logging.getLogger("tf_dpadaptive")

#: Rows that are tried out; the first is the one that changes.
_ROWS = 4
#: How far, relative to their size, equal results may lie apart.
_TOLERANCE = 1e-3


def mixing_reasons(model: keras.Model, batch: Batch) -> list[str]:
    """Returns why the model mixes examples; empty if it does not.

    Says in the log if the compiled loss mixes, or if nothing could be tried.

    Args:
        model: A built and compiled model.
        batch: A batch whose shapes and dtypes are used.
    """
    specs = row_specs(batch)
    try:
        with tf.init_scope():
            return _try_out(model, specs)
    except Exception as error:  # whatever made-up rows may provoke
        logger.info(
            "It was not tried out whether %s mixes the rows of a batch: it "
            "does not take made-up rows (%s: %s).",
            model.name,
            type(error).__name__,
            str(error).split("\n")[0],
        )
        return []


def _try_out(model: keras.Model, specs: Any) -> list[str]:
    rows, changed = _made_up(specs, 0), _made_up(specs, 1)
    values = [_spread_out(v) for v in model.trainable_variables]
    first, second = _run(model, values, rows), _run(model, values, changed)
    if _differ(first, second):
        return [_reason(_culprit(model, values, rows, changed))]
    if _loss_mixes(model, rows, first):
        logger.warning(
            "The compiled loss of a batch is not the mean of the losses of "
            "its rows (masks, a sum, or a loss that compares rows): private "
            "training takes the loss of each example by itself."
        )
    return []


def _reason(layer: Any) -> str:
    where = "The model" if layer is None else f"Layer {layer.name!r}"
    kind = "" if layer is None else f" ({type(layer).__name__})"
    return (
        f"{where}{kind} mixes the examples of a batch: the output of one row "
        "moves when another row changes. Normalise or pool within one example "
        "instead, and pad to one length for all batches (such as the "
        "`output_sequence_length` of TextVectorization)."
    )


def _run(model: keras.Model, values: Sequence[Any], rows: Batch) -> Any:
    """The training forward's outputs, with fixed seeds and nothing written."""
    seeds = [
        (g.state, tf.ones(g.state.shape, g.state.dtype))
        for g in seed_generators(model)
    ]
    with keras.StatelessScope(
        [*zip(model.trainable_variables, values, strict=True), *seeds]
    ):
        if model._call_has_training_arg:
            return model(rows.x, training=True)
        return model(rows.x)


def _differ(first: Any, second: Any, lengths: bool = False) -> bool:
    """Whether rows other than the changed one have moved, or grown."""
    return any(
        _far(one[1:], other[1:]) or (lengths and one.shape != other.shape)
        for one, other in zip(
            tf.nest.flatten(first), tf.nest.flatten(second), strict=True
        )
        if _has_rows(one) and _has_rows(other)
    )


def _has_rows(tensor: Any) -> bool:
    shape = getattr(tensor, "shape", None)
    return shape is not None and len(shape) > 0 and shape[0] == _ROWS


def _far(one: Any, other: Any) -> bool:
    if isinstance(one, tf.RaggedTensor):
        return one.to_list() != other.to_list()
    one, other = np.asarray(one), np.asarray(other)
    # A batch that is padded to its longest row: what both of them have.
    both = tuple(map(slice, np.minimum(one.shape, other.shape)))
    one, other = one[both], other[both]
    if one.dtype.kind in "OSUb":
        return not np.array_equal(one, other)
    one, other = one.astype(np.float64), other.astype(np.float64)
    if not (np.isfinite(one).all() and np.isfinite(other).all()):
        return False
    size = np.abs(one).max(initial=1e-6)
    return bool(np.abs(one - other).max(initial=0.0) > _TOLERANCE * size)


def _loss_mixes(model: keras.Model, rows: Batch, outputs: Any) -> bool:
    if not all(_has_rows(t) for t in tf.nest.flatten(outputs)):
        return False

    def loss(part: slice) -> float:
        def take(tensor: Any) -> Any:
            if tensor is None:
                return None
            taken = tensor[part]
            mask = getattr(tensor, "_keras_mask", None)
            if mask is not None:
                keras.src.backend.set_keras_mask(taken, mask[part])
            return taken

        batch = Batch(*tf.nest.map_structure(take, rows[:3]))
        with keras.StatelessScope():
            return float(
                model._compute_loss(
                    x=batch.x,
                    y=batch.y,
                    y_pred=tf.nest.map_structure(take, outputs),
                    sample_weight=batch.sample_weight,
                    training=True,
                )
            )

    each = [loss(slice(i, i + 1)) for i in range(_ROWS)]
    return _far(np.asarray([np.mean(each)]), np.asarray([loss(slice(None))]))


def _culprit(
    model: keras.Model, values: Sequence[Any], rows: Batch, changed: Batch
) -> Any:
    """The innermost layer that takes still rows and returns moved ones."""
    with _recorded(model) as first:
        _run(model, values, rows)
    with _recorded(model) as second:
        _run(model, values, changed)
    for (layer, taken, given), (_, taken_2, given_2) in zip(
        first, second, strict=False
    ):
        still = not _differ(taken, taken_2, lengths=True)
        if still and _differ(given, given_2, lengths=True):
            return layer
    return None


@contextlib.contextmanager
def _recorded(model: keras.Model) -> Iterator[list[tuple[Any, Any, Any]]]:
    """Notes what each layer takes and returns, the innermost first."""
    calls: list[tuple[Any, Any, Any]] = []

    def noting(layer: Any) -> Any:
        call = layer.call

        @functools.wraps(call)
        def noted(*args: Any, **kwargs: Any) -> Any:
            result = call(*args, **kwargs)
            calls.append((layer, (args, kwargs), result))
            return result

        return noted

    layers = list(model._flatten_layers(include_self=False, recursive=True))
    own = [layer for layer in layers if "call" not in vars(layer)]
    for layer in own:
        object.__setattr__(layer, "call", noting(layer))
    try:
        yield calls
    finally:
        for layer in own:
            object.__delattr__(layer, "call")


def _spread_out(variable: keras.Variable) -> tf.Tensor:
    """The variable's value; of a constant one, which may hide, another."""
    value = tf.convert_to_tensor(variable.value)
    if not value.dtype.is_floating or bool(
        tf.reduce_any(value != tf.reshape(value, [-1])[0])
    ):
        return value
    generator = np.random.default_rng(0)
    return value + tf.cast(
        0.3 * generator.standard_normal(value.shape), value.dtype
    )


def _made_up(specs: Any, variant: int) -> Batch:
    """Four rows; those of the two variants differ in the first."""
    generator = np.random.default_rng(0)

    def rows(spec: tf.TensorSpec, shift: int = 0) -> tf.Tensor:
        dtype = spec.dtype
        # What is not fixed (a time axis) may have any length.
        shape = [_ROWS, *(8 if d is None else d for d in spec.shape)]
        if dtype == tf.string:
            made = np.full(shape, "a b", object)
            made[0] = ("a b", "b a a")[variant]
        elif dtype.is_floating or dtype.is_complex:
            made = generator.uniform(size=(2, *shape))
            made[0, 0] = made[variant, 0]
            made = made[0]
        else:
            # Ones, then zeros: token numbers, masks and labels alike.
            made = np.ones(shape)
            made[0] = ~_tail(shape[1:], 2) if variant else 1
            made[1] = (np.arange(made[1].size) % 2 == 0).reshape(shape[1:])
            made[2] = ~_tail(shape[1:], 4)
            made = np.roll(made, shift, -1) if made.ndim > 1 else made
            made = made.astype(bool) if dtype.is_bool else made
        return tf.convert_to_tensor(made, dtype)

    made = tf.nest.map_structure(rows, specs)
    # So that a token and its label are not always alike.
    y = tf.nest.map_structure(lambda spec: rows(spec, 1), specs.y)
    return made._replace(y=y).with_none()


def _tail(shape: Sequence[int], part: int) -> np.ndarray:
    """True in the last 1/part of a row, and in a row of one number."""
    size = int(np.prod(shape))
    return (np.arange(size) >= size - max(1, size // part)).reshape(shape)
