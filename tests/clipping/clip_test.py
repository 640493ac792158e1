"""The one clip, its neighbours, and what counts as zero."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tf_dpadaptive.clipping.clip import (
    clip_and_sum,
    clip_factors,
    squared_norms,
)
from tf_dpadaptive.clipping.geometry import IDENTITY, Geometry


def gradients(rows: int = 6, seed: int = 0) -> dict[int, tf.Tensor]:
    """Of three variables, one of them a scalar; lengths from 1/100 to 100."""
    rng = np.random.default_rng(seed)
    length = 10.0 ** rng.uniform(-2, 2, rows)
    return {
        i: tf.constant(
            length.reshape([-1] + [1] * len(shape))
            * rng.standard_normal((rows, *shape)),
            tf.float32,
        )
        for i, shape in {0: (3, 2), 2: (4,), 5: ()}.items()
    }


def by_hand(grads: dict[int, tf.Tensor], real: np.ndarray, clip: float):
    rows = np.concatenate(
        [np.reshape(g, (len(real), -1)) for g in grads.values()], 1
    ).astype(np.float64)
    norms = np.linalg.norm(rows, axis=1)
    factors = np.minimum(1, clip / norms) * real
    return (factors[:, None] * rows).sum(0), norms


def flat(sums: dict[int, tf.Tensor]) -> np.ndarray:
    return np.concatenate([np.ravel(s) for s in sums.values()])


ALL = tf.ones([6], tf.bool)


@pytest.mark.parametrize("clip", [0.01, 1.0, 1e6])
def test_sum_is_that_by_hand(clip: float):
    grads = gradients()
    real = np.array([1, 0, 1, 1, 0, 1], bool)
    sums, norms = clip_and_sum(grads, tf.constant(real), clip, IDENTITY)
    expected, lengths = by_hand(grads, real, clip)
    np.testing.assert_allclose(flat(sums), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(norms, lengths, rtol=1e-5)
    assert [s.shape.as_list() for s in sums.values()] == [[3, 2], [4], []]


@settings(max_examples=30)
@given(
    clip=st.floats(1e-3, 1e3),
    seed=st.integers(0, 2**16),
    kind=st.sampled_from(["ordinary", "huge", "nan", "inf", "zero", "mixed"]),
)
def test_one_example_moves_the_sum_by_at_most_the_clip_norm(
    clip: float, seed: int, kind: str
):
    grads = {i: g.numpy() for i, g in gradients(seed=seed).items()}
    value = {"huge": 1e18, "nan": np.nan, "inf": -np.inf, "zero": 0.0}
    if kind in value:
        for g in grads.values():
            g[0] = value[kind]
    elif kind == "mixed":
        grads[0][0, 0, 0] = np.nan
    tensors = {i: tf.constant(g) for i, g in grads.items()}
    there, _ = clip_and_sum(tensors, ALL, clip, IDENTITY)
    gone, _ = clip_and_sum(
        tensors, tf.constant([False] + 5 * [True]), clip, IDENTITY
    )
    moved = np.linalg.norm(flat(there) - flat(gone))
    assert np.isfinite(flat(there)).all()
    # 5 other rows of at most `clip` are rounded to 24 bits.
    assert moved <= clip * (1 + 1e-5)
    if kind in ("nan", "inf", "mixed"):
        np.testing.assert_array_equal(flat(there), flat(gone))
    if kind == "huge":
        assert moved == pytest.approx(clip, rel=1e-4)


def test_scale_and_centre_come_before_the_clip():
    grads = gradients()
    rng = np.random.default_rng(1)
    scale, centre = [], []
    for i in range(6):
        shape = grads[i].shape[1:] if i in grads else ()
        scale.append(tf.constant(rng.uniform(0.1, 9, shape), tf.float32))
        centre.append(tf.constant(rng.standard_normal(shape), tf.float32))
    moved = {i: scale[i] * (g - centre[i]) for i, g in grads.items()}
    expected, norms = clip_and_sum(moved, ALL, 1.0, IDENTITY)
    found, found_norms = clip_and_sum(grads, ALL, 1.0, Geometry(scale, centre))
    np.testing.assert_allclose(flat(found), flat(expected), rtol=1e-5)
    np.testing.assert_allclose(found_norms, norms, rtol=1e-6)


def test_norms_are_float32_whatever_the_gradients_are():
    # 300² overflows in float16; the sum of 4096 small squares vanishes there.
    grads = {0: tf.fill([1, 4096], tf.constant(300.0, tf.float16))}
    np.testing.assert_allclose(
        squared_norms(grads), [4096 * 300.0**2], rtol=1e-6
    )


@pytest.mark.parametrize(
    ("norm", "real", "factor"),
    [
        (0.0, True, 1.0),
        (0.5, True, 1.0),
        (2.0, True, 1.0),
        (4.0, True, 0.5),
        (4.0, False, 0.0),
        (np.inf, True, 0.0),
        (np.nan, True, 0.0),
        (3e38, True, 2.0 / 3e38),
    ],
)
def test_factors(norm: float, real: bool, factor: float):
    found = clip_factors(tf.constant([norm]), tf.constant([real]), 2.0)
    assert float(found[0]) == pytest.approx(factor, rel=1e-6)
