"""Streaming C⁻¹z where past vectors are kept in a ring of rows.

A step makes two vectors from the fresh white noise z and the rows of the ring:
what is kept, in place of one of the rows, and what is emitted.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from numpy.typing import ArrayLike

from tf_dpadaptive.noise.mechanism import Shape, WhiteNoise
from tf_dpadaptive.noise.streams import (
    CorrelatedStream,
    assign_row,
    buffer,
    size,
)

#: About so many floats of the ring (4 MiB) are read at once, so that what is
#: read is still in the cache when it is multiplied.
CELLS = 2**20


class Move(NamedTuple):
    """What one step does.

    Attributes:
        place: Row of the ring that is written, int64 scalar.
        advance: Gives (kept, emitted), of shape (columns,), from part of z and
            of the ring, of shapes (columns,) and (rows, columns).
    """

    place: tf.Tensor
    advance: Callable[[tf.Tensor, tf.Tensor], tuple[tf.Tensor, tf.Tensor]]


def weighted(weights: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    """Returns Σ_s weights[s] · rows[s], shape (columns,)."""
    return tf.matmul(weights[None], rows)[0]


def lags_of_slots(step: tf.Tensor, kept: int) -> tf.Tensor:
    """Returns, from 0 for the last step, how old each row of the ring is.

    Args:
        step: int64 scalar; step t wrote to row t modulo `kept`.
        kept: Number of rows.
    """
    slots = tf.range(kept, dtype=tf.int64)
    return tf.math.floormod(step - 1 - slots, kept)


class RingStream(CorrelatedStream):
    """Keeps `kept` vectors of the size of the variables.

    Args:
        white: Source of white noise.
        shapes: Shapes of the variables.
        num_steps: n.
        stream: Which of the releases of a step this is.
        kept: Rows of the ring, >= 1.
        numbers: Arrays that `move` takes, held among the buffers.
        move: Gives what a step does, from (step, one, *numbers). What is
            emitted must have the factor `one` (see `CorrelatedStream`).
    """

    def __init__(
        self,
        white: WhiteNoise,
        shapes: Sequence[Shape],
        num_steps: int | None,
        stream: int,
        *,
        kept: int,
        numbers: Sequence[ArrayLike],
        move: Callable[..., Move],
    ) -> None:
        super().__init__(white, shapes, num_steps, stream)
        self._move = move
        with tf.init_scope():
            self._numbers = [
                buffer(np.asarray(x, np.float32), "noise_numbers")
                for x in numbers
            ]
            self._rings = [
                buffer(_empty(kept, size(shape)), "noise_ring")
                for shape in self._shapes
            ]
        self.buffers = [*self._numbers, *self._rings]

    def _next(self, step: tf.Tensor, one: tf.Tensor) -> list[tf.Tensor]:
        numbers = [x.read_value() for x in self._numbers]
        move = self._move(step, one, *numbers)
        return [
            _advance(ring, move, self._white_noise(step, variable))
            for variable, ring in enumerate(self._rings)
        ]


def _advance(ring: tf.Variable, move: Move, white: tf.Tensor) -> tf.Tensor:
    """Writes a row of the ring and returns what is emitted.

    Chunk by chunk, by gather: TensorFlow copies a variable that is assigned by
    parts when it is read whole, and the ring may be most of the memory.
    """
    chunks, _, columns = ring.shape
    shape = white.shape
    white = tf.reshape(white, [-1])
    padding = chunks * columns - white.shape[0]
    if padding:
        white = tf.pad(white, [[0, padding]])
    white = tf.reshape(white, [chunks, columns])

    def advance(chunk: tf.Tensor) -> tf.Tensor:
        kept, emitted = move.advance(
            tf.gather(white, chunk), tf.gather(ring, chunk)
        )
        assign_row(ring, chunk, move.place, kept)
        return emitted

    if chunks == 1:
        noise = advance(tf.constant(0, tf.int64))
    else:
        noise = tf.map_fn(
            advance,
            tf.range(chunks, dtype=tf.int64),
            fn_output_signature=tf.TensorSpec([columns], tf.float32),
            parallel_iterations=1,
        )
    noise = tf.reshape(noise, [-1])
    return tf.reshape(noise[:-padding] if padding else noise, shape)


def _empty(kept: int, length: int) -> tf.Tensor:
    chunks = _number_of_chunks(kept, length)
    return tf.zeros([chunks, kept, math.ceil(length / chunks)])


def _number_of_chunks(kept: int, length: int) -> int:
    """The least that divides `length` evenly, if a small one does."""
    least = max(1, math.ceil(kept * length / CELLS))
    for chunks in range(least, 2 * least):
        if length % chunks == 0:
            return chunks
    return least
