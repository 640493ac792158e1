"""The models of the experiments, as Keras functional models.

Each ends in logits and takes the raw inputs of its task: the first layer
scales by a constant of the file format. None holds batch normalization, which
mixes the examples of a batch and so has no per-example gradient.
"""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import layers, ops

from tf_dpadaptive.data.task import Task
from tf_dpadaptive.experiments.language import bert


def logistic(task: Task) -> keras.Model:
    """Multinomial logistic regression.

    Args:
        task: Gives the shape of the inputs and the number of classes.

    Returns:
        The model.
    """
    inputs, x = _inputs(task)
    x = layers.Flatten()(x)
    return _model(inputs, x, task)


@keras.saving.register_keras_serializable(package="tf_dpadaptive")
class OrientedEdges(layers.Layer):
    """Strength of the edges in eight directions, pooled over small cells.

    Hand-made features of one image each, without weights. Pooled are 3x3
    pixels at every second pixel; the square root evens out strong edges.
    """

    directions = 8

    def call(self, images: Any) -> Any:
        """Returns (n, ⌈h/2⌉, ⌈w/2⌉, 8) from images of shape (n, h, w, c)."""
        angles = 2 * np.pi * np.arange(self.directions) / self.directions
        kernel = np.zeros((3, 3, 1, self.directions), np.float32)
        kernel[1, 2, 0], kernel[1, 0, 0] = np.cos(angles), -np.cos(angles)
        kernel[2, 1, 0], kernel[0, 1, 0] = np.sin(angles), -np.sin(angles)
        grey = ops.mean(images, axis=-1, keepdims=True)
        kernel = ops.cast(kernel, grey.dtype)
        edges = ops.relu(ops.conv(grey, kernel, padding="same"))
        return ops.sqrt(ops.average_pool(edges, 3, strides=2, padding="same"))


def edge_logistic(task: Task) -> keras.Model:
    """Multinomial logistic regression on hand-made edge features.

    With little data and much noise, few weights on good features beat a
    network that has to learn its features.

    Args:
        task: Gives the shape of the inputs, (height, width, channels), and
            the number of classes.

    Returns:
        The model; it starts from zeros.

    Reference: Tramèr & Boneh, "Differentially private learning needs better
    features (or much more data)", 2020, arXiv 2011.11660; the features there
    are a scattering transform.
    """
    inputs, x = _inputs(task)
    x = layers.Flatten()(OrientedEdges()(x))
    # Each example by its own mean and variance: nothing is shared.
    x = layers.LayerNormalization(center=False, scale=False)(x)
    return _model(inputs, x, task, kernel_initializer="zeros")


def mlp(
    task: Task, *, units: int = 128, depth: int = 1, activation: str = "tanh"
) -> keras.Model:
    """A multi-layer perceptron.

    Args:
        task: Gives the shape of the inputs and the number of classes.
        units: Width of each hidden layer, >= 1.
        depth: Number of hidden layers, >= 0.
        activation: A Keras activation.

    Returns:
        The model.
    """
    inputs, x = _inputs(task)
    x = layers.Flatten()(x)
    for _ in range(depth):
        x = layers.Dense(units, activation=activation)(x)
    return _model(inputs, x, task)


def mnist_cnn(task: Task, *, activation: str = "tanh") -> keras.Model:
    """The classic network of private MNIST: 26,010 parameters.

    Two strided convolutions and a hidden layer of 32. With tanh, private
    training is two points better than with relu: bounded activations keep
    the gradients near the clip norm.

    Args:
        task: Gives the shape of the inputs, (28, 28, 1) in the paper.
        activation: A Keras activation.

    Returns:
        The model.

    Reference: Papernot et al., "Tempered sigmoid activations for deep
    learning with differential privacy", 2020, arXiv 2007.14191, table 1.
    """
    inputs, x = _inputs(task)
    x = layers.Conv2D(16, 8, strides=2, padding="same", activation=activation)(
        x
    )
    x = layers.MaxPooling2D(2, strides=1)(x)
    x = layers.Conv2D(32, 4, strides=2, activation=activation)(x)
    x = layers.MaxPooling2D(2, strides=1)(x)
    x = layers.Flatten()(x)
    x = layers.Dense(32, activation=activation)(x)
    return _model(inputs, x, task)


def cifar_cnn(
    task: Task, *, width: int = 16, groups: int = 4, activation: str = "tanh"
) -> keras.Model:
    """A small network with group normalization, for CIFAR on a CPU.

    Three convolutions, each with group normalization and pooling, of `width`,
    2 and 4 times `width` channels.

    Args:
        task: Gives the shape of the inputs and the number of classes.
        width: Channels of the first convolution, a multiple of `groups`.
        groups: Groups of each normalization.
        activation: A Keras activation.

    Returns:
        The model.
    """
    inputs, x = _inputs(task, centred=True)
    for channels in (width, 2 * width, 4 * width):
        x = layers.Conv2D(channels, 3, padding="same")(x)
        x = layers.GroupNormalization(groups)(x)
        x = layers.Activation(activation)(x)
        x = layers.AveragePooling2D(2)(x)
    x = layers.Flatten()(x)
    return _model(inputs, x, task)


@keras.saving.register_keras_serializable(package="tf_dpadaptive")
class StandardizedConv2D(layers.Conv2D):
    """A convolution whose kernel is standardized for each output channel.

    The kernel used is (w - mean) / sqrt(n · var + 1e-4), n the fan-in, so
    that an output has the variance of its inputs.

    Reference: Qiao et al., "Micro-batch training with batch-channel
    normalization and weight standardization", 2019, arXiv 1903.10520; the
    scale is that of Brock et al., 2021, arXiv 2101.08692.
    """

    def convolution_op(self, inputs: Any, kernel: Any) -> Any:
        """Convolves with the standardized kernel."""
        kernel = ops.convert_to_tensor(kernel)
        axes = tuple(range(len(kernel.shape) - 1))
        fan_in = 1
        for axis in axes:
            fan_in *= kernel.shape[axis]
        kernel = kernel - ops.mean(kernel, axes, keepdims=True)
        scale = ops.rsqrt(fan_in * ops.var(kernel, axes, keepdims=True) + 1e-4)
        return super().convolution_op(inputs, kernel * scale)


def wide_resnet(
    task: Task, *, depth: int = 16, width: int = 4, groups: int = 16
) -> keras.Model:
    """A wide residual network with group norm and standardized weights.

    WRN-16-4 as in private training: no batch normalization, no biases in the
    convolutions, pre-activation blocks.

    Args:
        task: Gives the shape of the inputs and the number of classes.
        depth: Number of layers, 6n + 4.
        width: Factor on the 16, 32, 64 channels of the three stages.
        groups: Groups of each normalization; divides 16 times `width`.

    Returns:
        The model.

    Raises:
        ValueError: If `depth` is not 6n + 4.

    Reference: De et al., "Unlocking high-accuracy differentially private
    image classification through scale", 2022, arXiv 2204.13650.
    """
    blocks, rest = divmod(depth - 4, 6)
    if rest or blocks < 1:
        raise ValueError(
            f"`depth` must be 6n + 4 with n >= 1. Received: depth={depth}."
        )
    inputs, x = _inputs(task, centred=True)
    x = StandardizedConv2D(16, 3, padding="same", use_bias=False)(x)
    for stage, channels in enumerate((16, 32, 64)):
        for block in range(blocks):
            strides = 2 if stage > 0 and block == 0 else 1
            x = _residual(x, channels * width, strides, groups)
    x = _normalized_relu(x, groups)
    x = layers.GlobalAveragePooling2D()(x)
    return _model(inputs, x, task)


MODELS: dict[str, Callable[..., keras.Model]] = {
    build.__name__: build
    for build in (
        logistic,
        edge_logistic,
        mlp,
        mnist_cnn,
        cifar_cnn,
        wide_resnet,
        bert,
    )
}


def build(name: str, task: Task, **arguments: Any) -> keras.Model:
    """Builds a model by its name.

    Args:
        name: A key of `MODELS`.
        task: Gives the shape of the inputs and the number of classes.
        **arguments: Of the function with that name; None means its default.

    Returns:
        The model, with freshly drawn weights.

    Raises:
        ValueError: If there is no such model.
    """
    if name not in MODELS:
        raise ValueError(
            f"`model.name` must be one of {sorted(MODELS)}. "
            f"Received: model.name={name!r}."
        )
    given = {k: v for k, v in arguments.items() if v is not None}
    return MODELS[name](task, **given)


def describe(model: keras.Model, section: Any) -> dict[str, Any]:
    """Returns what a report says of a model.

    Args:
        model: The model, built.
        section: The config's `model`, which may name a `preset`.

    Returns:
        Number of parameters, and where the weights come from.
    """
    preset = section.get("preset")
    weights = f"keras-hub preset {preset}" if preset else "random"
    return {"parameters": model.count_params(), "weights": weights}


def _inputs(task: Task, centred: bool = False) -> tuple[Any, Any]:
    """Returns the raw inputs, and the same in 0..1 or, centred, -1..1."""
    inputs = keras.Input(task.input_shape, dtype=task.x_train.dtype.name)
    top = task.max_value / (2 if centred else 1)
    return inputs, layers.Rescaling(1 / top, -1.0 if centred else 0.0)(inputs)


def _model(
    inputs: Any, features: Any, task: Task, **arguments: Any
) -> keras.Model:
    """Puts the layer on top that makes the logits."""
    logits = layers.Dense(task.num_classes, **arguments)(features)
    return keras.Model(inputs, logits)


def _normalized_relu(x: Any, groups: int) -> Any:
    # 16 channels come out of the first convolution, whatever the width.
    x = layers.GroupNormalization(min(groups, x.shape[-1]))(x)
    return layers.ReLU()(x)


def _residual(x: Any, channels: int, strides: int, groups: int) -> Any:
    def convolve(x: Any, size: int, strides: int = 1) -> Any:
        return StandardizedConv2D(
            channels, size, strides=strides, padding="same", use_bias=False
        )(x)

    y = _normalized_relu(x, groups)
    shortcut = x
    if strides > 1 or x.shape[-1] != channels:
        shortcut = convolve(y, 1, strides)
    y = convolve(y, 3, strides)
    y = convolve(_normalized_relu(y, groups), 3)
    return layers.Add()([shortcut, y])
