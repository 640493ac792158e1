"""One comparison for every rule: layer-wise against sequential."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_dpadaptive.batch import Batch
from tf_dpadaptive.clipping.clip import clip_and_sum
from tf_dpadaptive.clipping.engine import Chunk
from tf_dpadaptive.clipping.example import ExampleLoss
from tf_dpadaptive.clipping.geometry import IDENTITY, Geometry
from tf_dpadaptive.clipping.layerwise import LayerwiseEngine


def compiled(model: keras.Model, loss: Any = "mse") -> keras.Model:
    """The model with a loss, and with weights that are not zero."""
    model.compile("sgd", loss)
    rng = np.random.default_rng(7)
    for v in model.trainable_variables:
        noise = 0.2 * rng.standard_normal(v.shape)
        v.assign(keras.ops.cast(v.value + noise, v.dtype))
    return model


def chunk_of(
    model: keras.Model,
    x: Any,
    y: Any,
    weight: Any = None,
    padding: Sequence[bool] | None = None,
) -> tuple[ExampleLoss, Chunk]:
    to = tf.convert_to_tensor
    x, y = tf.nest.map_structure(to, (x, y))
    batch = Batch(
        x,
        y,
        None if weight is None else tf.nest.map_structure(to, weight),
        None if padding is None else to(padding),
    )
    example = ExampleLoss(model)
    seeds = example.draw_seeds(batch.size)
    return example, Chunk(batch.without_none(), batch.real(), seeds)


def geometries(model: keras.Model, seed: int = 3) -> dict[str, Geometry]:
    rng = np.random.default_rng(seed)
    shapes = [v.shape for v in model.trainable_variables]
    scale = [
        tf.constant(np.exp(rng.standard_normal(s)), tf.float32) for s in shapes
    ]
    centre = [
        tf.constant(0.3 * rng.standard_normal(s), tf.float32) for s in shapes
    ]
    return {
        "identity": IDENTITY,
        "scale": Geometry(scale, None),
        "centre": Geometry(None, centre),
        "both": Geometry(scale, centre),
    }


def reference(example: ExampleLoss, chunk: Chunk) -> Any:
    """Gradients, losses and outputs of the examples, one by one."""

    def one(piece):
        row = tf.nest.map_structure(lambda t: tf.squeeze(t, 0), piece)
        result = example(example.values(), row.batch, row.seeds)
        return tf.nest.map_structure(
            lambda t: t[None],
            (result.gradients, result.loss, result.outputs, result.counters),
        )

    traced = tf.function(one, autograph=False)
    size = chunk.real.shape[0]
    pieces = [
        traced(tf.nest.map_structure(lambda t, i=i: t[i : i + 1], chunk))
        for i in range(size)
    ]
    return tf.nest.map_structure(lambda *t: tf.concat(t, 0), *pieces)


def _finite(norms: np.ndarray) -> np.ndarray:
    """Infinite and undefined norms are alike: such a row counts nothing."""
    return np.where(np.isfinite(norms), norms, np.inf)


def assert_same(
    model: keras.Model,
    x: Any,
    y: Any,
    *,
    weight: Any = None,
    padding: Sequence[bool] | None = None,
    only: Sequence[str] = ("identity", "scale", "centre", "both"),
    eager: bool = False,
    tolerance: float = 1e-5,
    fallbacks: Sequence[str] | None = (),
    **options: Any,
) -> None:
    """Asserts equal norms and clipped sums in every geometry."""
    example, chunk = chunk_of(model, x, y, weight, padding)
    engine = LayerwiseEngine(example)
    if fallbacks is not None:
        names = {layer.name for layer in engine.fallback_layers(chunk)}
        assert names == set(fallbacks)
    gradients, losses, outputs, counters = reference(example, chunk)
    real = chunk.real.numpy()
    shapes = geometries(model)
    want: dict[str, Any] = {}
    clip_norms: dict[str, Any] = {}
    for name in only:
        _, norms = clip_and_sum(gradients, chunk.real, 1.0, shapes[name])
        finite = norms.numpy()[real & np.isfinite(norms.numpy())]
        clip_norms[name] = float(np.median(finite)) if finite.size else 1.0
        clip_norms[name] = clip_norms[name] or 1.0
        want[name] = clip_and_sum(
            gradients, chunk.real, clip_norms[name], shapes[name]
        )

    def work(values, chunk):
        return {
            name: engine.clipped_sum(
                values, chunk, clip_norms[name], shapes[name]
            )
            for name in only
        }

    if not eager:
        work = tf.function(work, autograph=False, **options)
    for name, got in work(example.values(), chunk).items():
        total, norms = want[name]
        assert set(got.total) == set(total)
        np.testing.assert_allclose(
            _finite(got.norms.numpy()[real]),
            _finite(norms.numpy()[real]),
            rtol=tolerance,
            err_msg=name,
        )
        np.testing.assert_allclose(
            got.losses.numpy()[real], losses.numpy()[real], rtol=tolerance
        )
        # A gradient that is 0 but for rounding (a key's bias) has no digits.
        largest = max(np.abs(v).max() for v in total.values())
        for i, value in total.items():
            size = max(np.abs(value).max(), 1e-2 * largest) + 1e-12
            np.testing.assert_allclose(
                got.total[i] / size,
                value / size,
                atol=tolerance,
                err_msg=f"{name}: {model.trainable_variables[i].path}",
            )
        tf.nest.map_structure(
            lambda a, b: np.testing.assert_allclose(
                a.numpy()[real].astype(float),
                b.numpy()[real].astype(float),
                rtol=max(1e-4, tolerance),
                atol=tolerance,
            ),
            got.outputs,
            outputs,
        )
        for a, b in zip(got.counters, counters, strict=True):
            np.testing.assert_allclose(a, b.numpy()[real].sum(0), rtol=1e-5)


def assert_rows_stay_apart(
    model: keras.Model, engine: Any, ids: Any, y: Any, loud: Any
) -> None:
    """Asserts under XLA that ids outside the table move the sum by ≤ 2ζ.

    Args:
        model: A model of int64 ids (4, 4), of a table of 7 rows.
        engine: Its engine.
        ids: Ids inside of the table.
        y: Targets.
        loud: Targets of the first example that give it a huge gradient.
    """
    clip = 1e-3

    @tf.function(jit_compile=True, autograph=False)
    def work(values: Any, chunk: Chunk) -> Any:
        found = engine.clipped_sum(values, chunk, clip, IDENTITY)
        return found.total, found.norms

    def total(x: Any, y: Any) -> Any:
        example, chunk = chunk_of(model, x, y)
        return work(example.values(), chunk)

    first, norms = total(ids, y)
    for row in ([7, 8, 15, 27], [2**32 + 1, -8, 9, 3], [70, -90, 14, 21]):
        x, other = ids.copy(), y.copy()
        x[0], other[0] = row, loud
        second, moved = total(x, other)
        np.testing.assert_allclose(moved[1:], norms[1:], rtol=1e-5)
        square = sum(
            np.sum((second[i] - first[i]).numpy() ** 2.0) for i in first
        )
        assert square**0.5 <= 2 * clip * 1.0001
