"""Tests of the models: shape, size, what is inside, and that they are saved."""

import keras
import numpy as np
import pytest

from tests.experiments import small
from tf_dpadaptive.data.tasks import Task
from tf_dpadaptive.experiments import models


def images(shape, classes=10):
    x = np.random.default_rng(0).integers(0, 256, (classes, *shape), np.uint8)
    y = np.arange(classes)
    return Task("images", x, y, x, y, classes, 255.0)


MNIST, CIFAR = images((28, 28, 1)), images((32, 32, 3))


@pytest.mark.parametrize(
    ("name", "task", "arguments", "parameters"),
    [
        ("logistic", MNIST, {}, 7_850),
        ("edge_logistic", MNIST, {}, 14 * 14 * 8 * 10 + 10),
        ("mlp", MNIST, {"units": 16, "depth": 2}, 12_560 + 272 + 170),
        ("mnist_cnn", MNIST, {}, 26_010),  # Table 1 of the paper.
        ("cifar_cnn", CIFAR, {}, 34_058),
        ("wide_resnet", CIFAR, {}, 2_748_890),  # WRN-16-4.
    ],
)
def test_model_has_logits_of_its_size_and_is_saved(
    name, task, arguments, parameters, tmp_path
):
    model = models.build(name, task, **arguments)
    assert model.count_params() == parameters
    logits = model(task.x_train)
    assert logits.shape == (10, 10)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(loaded(task.x_train), logits, atol=1e-5)


@pytest.mark.parametrize("name", sorted(set(models.MODELS) - {"bert"}))
def test_rows_do_not_see_one_another(name):
    task = CIFAR if name in ("cifar_cnn", "wide_resnet") else MNIST
    model = models.build(name, task)
    for layer in model._flatten_layers():
        assert not isinstance(layer, keras.layers.BatchNormalization)
    alone = np.concatenate(
        [model(row[np.newaxis], training=True) for row in task.x_train[:3]]
    )
    together = model(task.x_train[:3], training=True)
    # Sums are taken in another order: float32 rounding and no more.
    np.testing.assert_allclose(alone, together, atol=1e-4)


def test_inputs_are_scaled_by_a_constant_of_the_format():
    model = models.build("logistic", MNIST)
    model.layers[-1].kernel.assign(np.ones((784, 10)))
    white = np.full((1, 28, 28, 1), 255, np.uint8)
    np.testing.assert_allclose(model(white), np.full((1, 10), 784.0))


def test_edges_point_where_the_picture_gets_brighter():
    picture = np.zeros((1, 8, 8, 1), np.float32)
    picture[:, :, 4:] = 1.0  # Brighter to the right: direction 0.
    edges = np.asarray(models.OrientedEdges()(picture))
    assert edges.shape == (1, 4, 4, 8)
    inside = edges[0, 1, :3].sum(0)  # Without the frame of zeros.
    assert inside.argmax() == 0
    assert inside[4] < 1e-6  # To the left, nowhere.
    np.testing.assert_allclose(inside[1], inside[7], rtol=1e-5)


def test_standardized_kernel_ignores_scale_and_offset():
    layer = models.StandardizedConv2D(4, 3)
    x = np.random.default_rng(0).normal(size=(2, 5, 5, 3)).astype(np.float32)
    before = layer(x)
    layer.kernel.assign(100 * layer.kernel.numpy() + 7)
    # 1e-4 beside the variance, and float32 after adding 7, leave 1 %.
    np.testing.assert_allclose(layer(x), before, rtol=0.05, atol=0.02)


def test_standardized_kernel_keeps_the_variance_of_its_inputs():
    layer = models.StandardizedConv2D(64, 3, padding="valid")
    x = np.random.default_rng(0).normal(size=(8, 9, 9, 16))
    # 25,088 nearly independent outputs: their variance is known to 2 %.
    assert np.var(layer(x.astype(np.float32))) == pytest.approx(1.0, rel=0.1)


def test_unknown_model_names_the_known():
    with pytest.raises(ValueError, match=r"mnist_cnn.*'vgg'"):
        models.build("vgg", MNIST)


def test_wide_resnet_needs_a_depth_of_6n_plus_4():
    with pytest.raises(ValueError, match="depth=15"):
        models.build("wide_resnet", CIFAR, depth=15)


def test_none_means_the_default():
    assert models.build("mlp", small.task(), units=None).count_params() == (
        models.build("mlp", small.task()).count_params()
    )
