"""AdaCliP's scale is the same number in graph mode and under XLA."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_dpadaptive as dpa


@pytest.mark.filterwarnings("ignore:d·S²σ²/B")
def test_scale_of_many_coordinates():
    # Summed up one after the other in float32 it was 3.5e-4 off.
    plan = dpa.PrivacyPlan(1.0, 1000, delta=1e-5)
    optimizer = dpa.optimizers.AdaCliP(0.1, 1.0, plan, h2=1.0)
    optimizer.build([keras.Variable(np.zeros((1500, 1500), np.float32))])

    def scale():
        return next(iter(optimizer.geometry().scale or ()))

    graph, xla = (
        tf.function(scale, jit_compile=jit)() for jit in (False, True)
    )
    np.testing.assert_allclose(graph, xla, rtol=2e-6)
