"""Which engine clips a model: `"auto"` takes the best that works."""

import contextlib
import logging
import os
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from tf_dpadaptive.batch import Batch
from tf_dpadaptive.clipping.engine import Chunk, Engine
from tf_dpadaptive.clipping.example import ExampleLoss
from tf_dpadaptive.clipping.geometry import IDENTITY
from tf_dpadaptive.clipping.layerwise import LayerwiseEngine
from tf_dpadaptive.clipping.probe import Probe
from tf_dpadaptive.clipping.sequential import SequentialEngine
from tf_dpadaptive.clipping.vectorized import VectorizedEngine

CLIPPING_MODES = ("auto", "vectorized", "sequential")

logger = logging.getLogger("tf_dpadaptive")


def choose_engine(
    mode: str, example: ExampleLoss, probed: Probe, batch: Batch
) -> Engine:
    """Returns the engine for a model and says in the log which and why.

    Args:
        mode: One of `CLIPPING_MODES`.
        example: The model's per-example loss.
        probed: What the trace of one example showed.
        batch: A batch whose shapes are used.

    Raises:
        ValueError: if `mode` names an engine that can't run this model.
    """
    if mode == "sequential":
        return SequentialEngine(example)
    if mode == "auto":
        engine = _layerwise(example, batch)
        if engine is not None:
            return engine
    reason = why_not_vectorized(example, probed, batch)
    if reason is None:
        logger.info("Per-example clipping: vectorized engine.")
        return VectorizedEngine(example)
    if mode == "vectorized":
        raise ValueError(
            f'`clipping="vectorized"` can\'t run this model: {reason} Use '
            'clipping="auto".'
        )
    logger.warning(
        "Per-example clipping: sequential engine (slow), because the "
        "vectorized engine can't run this model: %s",
        reason,
    )
    return SequentialEngine(example)


def _layerwise(example: ExampleLoss, batch: Batch) -> LayerwiseEngine | None:
    """The layer-wise engine, if it can run the model; says why if not."""
    engine = LayerwiseEngine(example)
    try:
        with _quiet():
            fallbacks = engine.fallback_layers(_shapes(example, batch))
    except (ValueError, TypeError, NotImplementedError) as error:
        logger.warning(
            "Per-example clipping: the layer-wise engine can't run this "
            "model: %s",
            str(error).splitlines()[0],
        )
        return None
    logger.info("Per-example clipping: layer-wise engine.")
    for layer, reasons in fallbacks.items():
        logger.warning(
            "Per-example clipping forms the gradients of layer %r one by one "
            "(slower): %s.",
            layer.name,
            "; ".join(reasons),
        )
    return engine


def _shapes(example: ExampleLoss, batch: Batch) -> Chunk:
    """Shapes and dtypes of two examples."""
    return Chunk(
        tf.nest.map_structure(
            lambda t: tf.TensorSpec([2, *t.shape[1:]], t.dtype),
            batch.without_none(),
        ),
        tf.TensorSpec([2], tf.bool),
        [tf.TensorSpec([2, 2], tf.int64) for _ in example.seed_states],
    )


def why_not_vectorized(
    example: ExampleLoss, probed: Probe, batch: Batch
) -> str | None:
    """Returns why `tf.vectorized_map` can't run the model; None if it can."""
    if "Einsum" in probed.operations and _onednn():
        return (
            "it holds an Einsum, whose batched form crashes the process with "
            "oneDNN on (set TF_ENABLE_ONEDNN_OPTS=0 to allow it)."
        )
    chunk = _shapes(example, batch)
    engine = VectorizedEngine(example)

    def trial(chunk: Chunk) -> Sequence[Any]:
        result = engine.clipped_sum(example.values(), chunk, 1.0, IDENTITY)
        return tf.nest.flatten(result)

    try:
        with _quiet():
            traced = tf.function(trial, autograph=False).get_concrete_function(
                chunk
            )
    except (ValueError, TypeError, NotImplementedError) as error:
        return f"{str(error).splitlines()[0].rstrip('.')}."
    if _onednn() and any(map(_broadcasts, _all_operations(traced.graph))):
        return (
            "it holds a matrix product of a batch of batches by one matrix, "
            "which corrupts memory with oneDNN on (set "
            "TF_ENABLE_ONEDNN_OPTS=0 to allow it)."
        )
    return None


def _all_operations(graph: Any) -> Iterator[Any]:
    """Operations of a graph and of the functions that it calls."""
    yield from graph.get_operations()
    for function in graph._functions.values():
        yield from _all_operations(function.graph)


def _broadcasts(operation: Any) -> bool:
    """Whether this is a batched matrix product of unequal batch shapes.

    tf.matmul of shapes [n, 1, a, b] and [b, c] crashes with oneDNN on, and
    vectorized_map makes those of a batch of one by a kernel.
    """
    if not operation.type.startswith("BatchMatMul"):
        return False
    one, other = (t.shape for t in operation.inputs[:2])
    if one.rank is None or other.rank is None:
        return True
    return one[:-2].as_list() != other[:-2].as_list()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Holds TensorFlow's pages about a failed trial back."""
    log = tf.get_logger()
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(level)


def _onednn() -> bool:
    """Whether oneDNN operations are on (the default on x86-64)."""
    return os.environ.get("TF_ENABLE_ONEDNN_OPTS", "1") != "0"
