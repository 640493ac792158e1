"""The reference engine against gradients that Keras gives one by one."""

import numpy as np
import tensorflow as tf

from tests.training import build
from tf_dpadaptive.batch import Batch
from tf_dpadaptive.clipping.engine import Chunk
from tf_dpadaptive.clipping.example import ExampleLoss
from tf_dpadaptive.clipping.geometry import IDENTITY
from tf_dpadaptive.clipping.sequential import SequentialEngine

X, Y = build.data()


def test_sums_norms_losses_and_outputs():
    model = build.compiled(metrics=["accuracy"])
    gradients = build.alone(model, X, Y)
    example = ExampleLoss(model)
    real = np.array([1, 1, 0, 1, 1, 1, 0, 1], bool)
    found = SequentialEngine(example).clipped_sum(
        example.values(),
        Chunk(
            tf.nest.map_structure(tf.constant, Batch(X, Y, (), ())),
            tf.constant(real),
            example.draw_seeds(tf.constant(8)),
        ),
        build.CLIP,
        IDENTITY,
    )
    total = np.concatenate([np.ravel(found.total[i]) for i in range(4)])
    np.testing.assert_allclose(
        total,
        build.clipped_mean(gradients[real], divisor=1.0),
        rtol=1e-5,
        atol=1e-6,
    )
    np.testing.assert_allclose(
        found.norms, np.linalg.norm(gradients, axis=1), rtol=1e-5
    )
    each = [
        model.test_on_batch(X[i : i + 1], Y[i : i + 1])[0] for i in range(8)
    ]
    np.testing.assert_allclose(found.losses, each, rtol=1e-5)
    np.testing.assert_allclose(found.outputs, model(X), rtol=1e-4, atol=1e-6)
