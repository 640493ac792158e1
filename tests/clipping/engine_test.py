"""Chunks bound memory and change nothing."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tf_dpadaptive.batch import Batch
from tf_dpadaptive.clipping.engine import Chunk, ClippedSum, in_chunks


def chunk(rows: int) -> Chunk:
    numbers = tf.reshape(tf.range(rows * 2, dtype=tf.float32), [rows, 2])
    return Chunk(
        Batch(numbers, (), (), ()),
        tf.range(rows) % 3 != 1,
        [tf.zeros([rows, 2], tf.int64)],
    )


def work(piece: Chunk) -> ClippedSum:
    """A stand-in of an engine: sums of real rows, lists of all rows."""
    x = tf.where(piece.real[:, None], piece.batch.x, 0.0)
    return ClippedSum(
        {1: tf.reduce_sum(x, 0)},
        piece.batch.x[:, 0],
        piece.batch.x[:, 1],
        {"out": piece.batch.x * 2},
        {0: piece.batch.x > 3.0},
        [tf.reduce_sum(x)],
    )


def same(found: Any, expected: Any) -> None:
    tf.nest.assert_same_structure(found, expected)
    for one, other in zip(
        tf.nest.flatten(found), tf.nest.flatten(expected), strict=True
    ):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("size", [None, 1, 2, 3, 5, 7, 8, 100])
@pytest.mark.parametrize("rows", [1, 7, 8])
def test_any_size_gives_the_same(rows: int, size: int | None):
    same(in_chunks(work, chunk(rows), size), work(chunk(rows)))


@pytest.mark.parametrize("size", [2, 3, 100])
def test_size_of_the_batch_may_be_unknown(size: int):
    signature = tf.nest.map_structure(
        lambda t: tf.TensorSpec([None, *t.shape[1:]], t.dtype), chunk(7)
    )

    @tf.function(input_signature=[signature], autograph=False)
    def run(piece: Chunk) -> ClippedSum:
        return in_chunks(work, piece, size)

    for rows in (1, 7, 8):
        same(run(chunk(rows)), work(chunk(rows)))


def test_pieces_are_of_equal_size_where_the_batch_is_known():
    seen = []

    def noting(piece: Chunk) -> ClippedSum:
        seen.append(piece.real.shape[0])
        return work(piece)

    in_chunks(noting, chunk(9), 8)
    assert set(seen) == {5}
