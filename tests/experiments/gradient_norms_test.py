"""Tests of the norms that are looked at on public data."""

import keras
import numpy as np

from tests.experiments import small
from tf_dpadaptive.experiments import gradient_norms, models


def test_norms_are_those_of_the_loss_of_each_example():
    task = small.task()
    model = models.build("logistic", task)
    model.compile(
        "sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    found = gradient_norms.nonprivate(model, task.x_train, task.y_train)
    # Softmax regression: the gradient is (p - y) ⊗ (x, 1).
    p = np.asarray(keras.ops.softmax(model(task.x_train)))
    error = np.linalg.norm(p - np.eye(2)[task.y_train], axis=1)
    x = task.x_train.reshape(len(p), -1)
    np.testing.assert_allclose(
        found, error * np.sqrt(1 + (x**2).sum(1)), rtol=1e-5
    )


def test_weights_scale_the_norms():
    task = small.task()
    model = models.build("logistic", task)
    model.compile(
        "sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    x, y = task.examples("train", 5)
    plain = gradient_norms.nonprivate(model, x, y)
    weights = np.array([0, 1, 2, 3, 4], np.float32)
    found = gradient_norms.nonprivate(model, x, y, weights)
    np.testing.assert_allclose(found, weights * plain, rtol=1e-5)
