"""The projection of the mean, beside float64."""

import numpy as np
import pytest
import tensorflow as tf

from tf_dpadaptive.optimizers import two_moments


@pytest.mark.parametrize("xla", [False, True])
@pytest.mark.parametrize("length", [0.5, 3.0])
def test_projection_of_many_coordinates(xla, length):
    # Summed up in float32 one after the other, the norm of so many equal
    # entries is 2e-3 off, and so is what comes out.
    rng = np.random.default_rng(0)
    mean = {
        0: np.full((1500, 1500), 1e-3, np.float32),
        3: rng.normal(scale=1e-3, size=(7,)).astype(np.float32),
    }
    norm = np.sqrt(
        sum(np.sum(np.square(v, dtype=float)) for v in mean.values())
    )
    mean = {i: v * np.float32(length / norm) for i, v in mean.items()}

    def projected(mean):
        return two_moments.project(mean, 1.0)

    got = tf.function(projected, jit_compile=xla)(
        {i: tf.constant(v) for i, v in mean.items()}
    )
    assert got.keys() == mean.keys()
    for i, v in mean.items():
        np.testing.assert_allclose(
            got[i], v / max(1.0, length), rtol=5e-7, atol=1e-12
        )
