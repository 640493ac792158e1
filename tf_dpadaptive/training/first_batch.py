"""Before the first update: is the fast engine right for this model?

`clipping.self_check` answers it on real rows. This finds the rows: whatever
kind of data `fit` was given, the first batch of it, as Keras hands it out.
"""

import inspect
import itertools
import logging
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tf_dpadaptive.batch import Batch
from tf_dpadaptive.clipping.engine import Chunk
from tf_dpadaptive.clipping.layerwise import LayerwiseEngine
from tf_dpadaptive.clipping.probe import row_specs
from tf_dpadaptive.clipping.self_check import self_check
from tf_dpadaptive.training import feeding

logger = logging.getLogger("tf_dpadaptive")

_MOST_BATCHES = 10
"""How many batches are looked through for one that is not padding alone."""


def check_engine(model: Any, elements: Iterable[Any]) -> None:
    """Compares the model's engine with the reference.

    Once a compile, for rows of one shape.

    Args:
        model: A privatized, compiled model.
        elements: Batches as the training step would get them.

    Raises:
        WrongGradients: if they disagree, naming the variable.
        ValueError: if the model can't be trained privately.

    Privacy: releases nothing, changes no weight and no random state.
    """
    state = model.private
    if not state.self_check:
        return
    for element in itertools.islice(elements, _MOST_BATCHES):
        batch = feeding.as_batch(element)
        rows = tf.where(batch.real())[:, 0]
        if not int(tf.size(rows)):
            continue
        shapes = str(row_specs(batch))
        if shapes in state.checked:
            return
        state.prepare(model, batch)
        setup = state.setup
        if isinstance(setup.engine, LayerwiseEngine):
            # Some layers mix examples in large batches only: as many rows as
            # any batch may have, by repetition.
            largest = setup.rows_at_once or model.optimizer.plan.max_batch_size
            rows = tf.constant(np.resize(rows.numpy(), largest))
            met = tf.nest.map_structure(
                lambda t, rows=rows: None if t is None else tf.gather(t, rows),
                batch,
            )
            report = self_check(
                setup.engine,
                setup.example,
                _chunk(setup.example, met),
                geometry=model.optimizer.geometry(),
            )
            logger.info("Self-check of clipping passed: %s.", report)
        state.checked.add(shapes)
        return


def peeked(data: Any) -> tuple[Any, Any]:
    """Returns the first element of a generator and a generator of all.

    Args:
        data: What `fit` was given.

    Returns:
        (None, data) if it is no generator, or if it is empty.
    """
    if not inspect.isgenerator(data):
        return None, data
    try:
        first = next(data)
    except StopIteration:
        return None, data

    def all_of_it() -> Iterator[Any]:
        yield first
        yield from data

    return first, all_of_it()


def _chunk(example: Any, batch: Batch) -> Chunk:
    """The rows with layer randomness, which is drawn anew for the update."""
    kept = [tf.identity(state) for state in example.seed_states]
    seeds = example.draw_seeds(batch.size)
    for state, value in zip(example.seed_states, kept, strict=True):
        state.assign(value)
    return Chunk(batch.without_none(), batch.real(), seeds)
