"""Is the fast engine right for this very model? Asked once, on real rows.

A wrong rule for a layer would make norms too small, and ε false. So, before the
first update of a fit, a batch goes through the engine, and some of its examples
through the reference (one example at a time), and it is asked whether

* the norm that each variable contributes is that of the reference,
* the clipped sum of these examples is,
* the norms go with the examples when the batch is put into another order,
* the gradient of an example stays when others are changed.

At the size of a real batch, since a layer may mix examples in large ones only.

The weights are jittered for this (and not changed): under a head or a LoRA
matrix of zeros the gradients below it are zero, and a check would be empty.
What is still zero is reported.
"""

import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tf_dpadaptive.clipping.clip import clip_and_sum
from tf_dpadaptive.clipping.engine import Chunk
from tf_dpadaptive.clipping.example import ExampleLoss
from tf_dpadaptive.clipping.geometry import IDENTITY, Geometry
from tf_dpadaptive.clipping.layerwise import LayerwiseEngine
from tf_dpadaptive.clipping.row_mixing import (
    WrongGradients,
    compare_neighbours,
    compare_orders,
    take,
    whole_norms,
)

logger = logging.getLogger("tf_dpadaptive")

_JITTER = 0.1


class SelfCheck(NamedTuple):
    """What was compared.

    Attributes:
        rows: Positions of the examples that the reference saw.
        largest_error: Largest relative difference of norms.
        untested: Paths of variables whose gradient was 0 all the same.
    """

    rows: tuple[int, ...]
    largest_error: float
    untested: tuple[str, ...]


def self_check(
    engine: LayerwiseEngine,
    example: ExampleLoss,
    chunk: Chunk,
    *,
    geometry: Geometry = IDENTITY,
    rows: int = 3,
    tolerance: float | None = None,
) -> SelfCheck | None:
    """Compares an engine with the reference and with itself.

    Args:
        engine: The engine.
        example: The model's per-example loss.
        chunk: A batch of data (not a symbolic one), of a size that the engine
            will meet.
        geometry: The optimizer's geometry.
        rows: How many examples go through the reference at most, at least 2.
        tolerance: Largest allowed relative difference of norms. None: 2e-3
            in float32, 2e-2 with a GPU (TF32), 0.1 in half precision.

    Returns:
        What was compared; None if the batch holds no example.

    Raises:
        WrongGradients: if they disagree; the message names the variable,
            and so the layer.

    Privacy: nothing is released but whether the engine is right.
    """
    if rows < 2:
        raise ValueError(f"`rows` must be >= 2. Received: rows={rows}.")
    real = np.flatnonzero(chunk.real.numpy())
    if not real.size:
        return None
    tolerance = _tolerance(example.model) if tolerance is None else tolerance
    whole = take(chunk, np.resize(real, max(2, real.size)))
    seen = np.arange(min(rows, max(2, real.size)))
    values = _jittered(example.model)
    want = _reference(example, values, take(whole, seen))
    right = _norms(want, geometry)
    moderate = np.zeros(whole.real.shape[0], bool)
    moderate[seen] = _moderate(whole_norms(right))
    compared = whole._replace(real=tf.constant(moderate))
    got, clip_norm = _Traced(engine, geometry), _middle(right) or 1.0
    norms, total = got(values, compared, clip_norm)
    compare_orders(example, got, values, whole, norms, tolerance)
    compare_neighbours(example, got, values, whole, norms, tolerance)
    few = {i: n[seen] for i, n in norms.items()}
    error = _compare_norms(example, few, right, tolerance)
    _compare_sums(
        example, total, want, moderate[seen], clip_norm, geometry, tolerance
    )
    untested = tuple(
        v.path
        for i, v in enumerate(example.model.trainable_variables)
        if i not in want or not np.any(want[i])
    )
    if untested:
        logger.warning(
            "Self-check of clipping: the gradients of %s are 0 for the "
            "examples looked at (an idle layer, or examples that the model "
            "has learnt by heart), so they could not be checked. Nothing "
            "need be done.",
            ", ".join(untested),
        )
    return SelfCheck(tuple(map(int, real[:rows])), error, untested)


class _Traced:
    """The engine's norms by variable, and its clipped sum, in one graph."""

    def __init__(self, engine: LayerwiseEngine, geometry: Geometry) -> None:
        def run(
            values: Sequence[tf.Tensor], chunk: Chunk, clip_norm: tf.Tensor
        ) -> Any:
            squares, result = engine.norms_and_sum(
                values, chunk, clip_norm, geometry
            )
            return squares, result.total

        self._function = tf.function(run, autograph=False)
        self._run: Any = None

    def __call__(
        self, values: Sequence[tf.Tensor], chunk: Chunk, clip_norm: float
    ) -> tuple[dict[int, np.ndarray], dict[int, np.ndarray]]:
        arguments = values, chunk, tf.constant(clip_norm)
        if self._run is None:  # TensorFlow counts, and reports, other traces
            self._run = self._function.get_concrete_function(*arguments)
        squares, total = self._run(*arguments)
        return (
            {i: np.sqrt(s.numpy().astype(float)) for i, s in squares.items()},
            {i: t.numpy() for i, t in total.items()},
        )


def _compare_norms(
    example: ExampleLoss,
    norms: dict[int, np.ndarray],
    right: dict[int, np.ndarray],
    tolerance: float,
) -> float:
    """Raises where a variable's norms differ; returns the largest error."""
    whole, found = whole_norms(right), whole_norms(norms)
    moderate = _moderate(whole)
    # Where squares leave float32's range, not finite is right too: it counts
    # as zero.
    small = ~moderate & np.isfinite(found)
    if np.any(small & ~(found >= (1 - tolerance) * whole)):
        raise WrongGradients(
            f"Huge per-example gradients come out too small: engine {found}, "
            f"reference {whole}. {_ADVICE}"
        )
    largest = 0.0
    for i, variable in enumerate(example.model.trainable_variables):
        if (i in norms) != (i in right):
            raise WrongGradients(
                f"Variable {variable.path!r} has a gradient in only one of "
                f"engine ({i in norms}) and reference ({i in right}). {_ADVICE}"
            )
        if i not in norms:
            continue
        error = np.abs(norms[i][moderate] - right[i][moderate])
        error = error / np.maximum(right[i], 0.1 * whole + 1e-12)[moderate]
        worst = float(np.max(error, initial=0.0))
        if not worst <= tolerance:
            raise WrongGradients(
                f"The per-example gradient norms of variable "
                f"{variable.path!r} are wrong: engine {norms[i]}, reference "
                f"{right[i]}. {_ADVICE}"
            )
        largest = max(largest, worst)
    return largest


def _compare_sums(
    example: ExampleLoss,
    total: dict[int, np.ndarray],
    want: dict[int, np.ndarray],
    real: np.ndarray,
    clip_norm: float,
    geometry: Geometry,
    tolerance: float,
) -> None:
    """Raises where the clipped sums differ."""
    gradients = {i: tf.constant(g) for i, g in want.items()}
    right, _ = clip_and_sum(gradients, tf.constant(real), clip_norm, geometry)
    size = np.sqrt(sum(np.square(t.numpy()).sum() for t in right.values()))
    for i, variable in enumerate(example.model.trainable_variables):
        if i not in right:
            continue
        error = np.linalg.norm(np.ravel(total[i] - right[i].numpy()))
        own = np.linalg.norm(np.ravel(right[i].numpy()))
        if not error <= 5 * tolerance * max(own, 0.1 * size) + 1e-12:
            raise WrongGradients(
                f"The clipped sum of variable {variable.path!r} is wrong: it "
                f"differs by {error:.3g} from the reference, whose norm is "
                f"{own:.3g}. {_ADVICE}"
            )


def _reference(
    example: ExampleLoss, values: Sequence[tf.Tensor], chunk: Chunk
) -> dict[int, np.ndarray]:
    """Per-example gradients, one example at a time."""

    def one(values: Sequence[tf.Tensor], piece: Chunk) -> dict[int, tf.Tensor]:
        row = tf.nest.map_structure(lambda t: tf.squeeze(t, 0), piece)
        return example(values, row.batch, row.seeds).gradients

    pieces = [
        tf.nest.map_structure(lambda t, i=i: t[i : i + 1], chunk)
        for i in range(int(chunk.real.shape[0]))
    ]
    traced: Any = tf.function(one, autograph=False)
    traced = traced.get_concrete_function(values, pieces[0])
    found = [traced(values, piece) for piece in pieces]
    return {i: np.stack([g[i].numpy() for g in found]) for i in found[0]}


def _jittered(model: keras.Model) -> list[tf.Tensor]:
    """The trainable variables' values, each moved a little."""
    moved = []
    for i, variable in enumerate(model.trainable_variables):
        rng = np.random.Generator(np.random.Philox(key=i))
        value = tf.convert_to_tensor(variable.value)
        size = np.sqrt(np.mean(np.square(value.numpy().astype(float))))
        noise = rng.standard_normal(variable.shape) * (size * _JITTER + 0.02)
        moved.append(value + tf.cast(noise, value.dtype))
    return moved


def _norms(
    gradients: dict[int, np.ndarray], geometry: Geometry
) -> dict[int, np.ndarray]:
    """float64 (n,) of each variable: ‖s ⊙ (g_i - m)‖."""
    return {
        i: np.sqrt(
            np.square(geometry.forward(i, g).numpy().astype(float)).sum(
                tuple(range(1, g.ndim))
            )
        )
        for i, g in gradients.items()
    }


def _moderate(whole: np.ndarray) -> np.ndarray:
    """Which norms have squares within float32's range; not NaN."""
    return whole < 1e18


def _middle(norms: dict[int, np.ndarray]) -> float:
    """A clip norm that clips some rows and not others."""
    whole = whole_norms(norms)
    whole = whole[_moderate(whole)]
    return float(np.mean(whole)) if whole.size else 0.0


def _tolerance(model: keras.Model) -> float:
    dtypes = {layer.compute_dtype for layer in model._flatten_layers()}
    if dtypes & {"float16", "bfloat16"}:
        return 0.1
    return 2e-2 if tf.config.list_physical_devices("GPU") else 2e-3


_ADVICE = (
    'Train with clipping="sequential", and report this with the layer: its '
    "rule is not right for it."
)
