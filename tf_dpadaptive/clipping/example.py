"""The loss and the gradient of ONE example, as Keras would compute them.

The per-example loss is the compiled loss (or the model's own `compute_loss`)
on a batch that holds that one example. Sequence means, masks, sample weights,
several outputs and loss weights therefore come out as in Keras, and layers or
losses that mix a batch have nothing to mix with.

Everything runs inside a `keras.StatelessScope`: no variable is written,
trainable variables are read from the tensors that are differentiated, and each
example reads its own seeds, so that random layers draw one mask per example.

Data-free penalties (weight regularisers) are switched off here: they belong
outside clipping and noise (`penalty_gradients`).
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf
from keras.src.random import seed_generator

from tf_dpadaptive.batch import Batch
from tf_dpadaptive.clipping.randomness import Draws, layer_randomness


class ExampleResult(NamedTuple):
    """What one example yields.

    Attributes:
        loss: float32 scalar, without weight regularisers.
        outputs: The model's outputs without their batch dimension.
        masks: Keras masks likewise, keyed by position in the flat outputs.
        counters: New values of additive metric variables that the loss
            updates, counted from zero.
        gradients: Float32 gradients keyed by position of the trainable
            variable; no entry where the loss does not depend on it.
    """

    loss: tf.Tensor
    outputs: Any
    masks: dict[int, tf.Tensor]
    counters: list[tf.Tensor]
    gradients: dict[int, tf.Tensor]


class ExampleLoss:
    """The per-example loss of a compiled Keras model.

    Args:
        model: A built and compiled `keras.Model`.
        counters: Additive metric variables (totals and counts of
            `keras.metrics.Mean` and `Sum`) that the loss may update.
    """

    def __init__(
        self, model: keras.Model, counters: Sequence[keras.Variable] = ()
    ) -> None:
        self.model = model
        self.counters = list(counters)
        self._generators = seed_generators(model)
        self.seed_states = [g.state for g in self._generators]

    def seeds_are_current(self) -> bool:
        """Whether the layers still draw from the generators known here.

        `keras.utils.set_random_seed` puts a new one in the place of Keras' own.
        """
        now = seed_generators(self.model)
        return [id(g) for g in now] == [id(g) for g in self._generators]

    def values(self) -> list[tf.Tensor]:
        """Returns the trainable variables' current values."""
        return [
            tf.convert_to_tensor(v.value)
            for v in self.model.trainable_variables
        ]

    def draw_seeds(self, size: tf.Tensor) -> list[tf.Tensor]:
        """Draws layer randomness for a batch and moves the generators on.

        Args:
            size: int32 scalar, number of rows n.

        Returns:
            One int64 tensor of shape (n, 2) a seed generator.
        """
        drawn = []
        for generator in self._generators:
            base = tf.cast(generator.next(), tf.int64)
            drawn.append(
                tf.random.stateless_uniform(
                    [size, 2],
                    seed=base,
                    minval=0,
                    maxval=2**31 - 1,
                    dtype=tf.int64,
                    alg="philox",
                )
            )
        return drawn

    def __call__(
        self,
        values: Sequence[tf.Tensor],
        row: Batch,
        seeds: Sequence[tf.Tensor],
        *,
        with_gradient: bool = True,
    ) -> ExampleResult:
        """Returns loss, outputs and gradient of one example.

        Args:
            values: The trainable variables' values.
            row: One row of a batch (no batch dimension).
            seeds: One int64 (2,) tensor a seed generator.
            with_gradient: False leaves `gradients` empty.
        """
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(values)
            loss, outputs, scope = forward(
                self.model,
                values,
                row.as_batch_of_one(),
                zip(self.seed_states, seeds, strict=True),
                [(c, tf.zeros(c.shape, c.dtype)) for c in self.counters],
            )
            read = current(self.model, scope)
        gradients = {}
        if with_gradient:
            gradients = {
                i: tf.cast(dense(g), tf.float32)
                for i, g in enumerate(tape.gradient(loss, read))
                if g is not None
            }
        return ExampleResult(
            tf.cast(loss, tf.float32),
            tf.nest.map_structure(_first, outputs),
            {i: _first(m) for i, m in keras_masks(outputs).items()},
            [scope.get_current_value(c) for c in self.counters],
            gradients,
        )


def forward(
    model: keras.Model,
    values: Sequence[tf.Tensor],
    batch: Batch,
    seeds: Any,
    state: Any = (),
) -> tuple[tf.Tensor, Any, keras.StatelessScope]:
    """Runs the training forward and the compiled loss without any write.

    Args:
        model: The model.
        values: The trainable variables' values.
        batch: A batch (with a batch dimension).
        seeds: Pairs (seed state, value): a value is the (2,) seed of one
            example, or (n, 2) seeds of n.
        state: Further pairs (variable, value) to read instead.

    Returns:
        The loss, the outputs, and the scope that caught what was assigned.
    """
    seeds = list(seeds)
    mapping = [
        *zip(model.trainable_variables, values, strict=True),
        *seeds,
        *state,
    ]
    with (
        without_regularizers(model),
        without_rematerialization(model),
        layer_randomness(Draws.of(seeds)),
        keras.StatelessScope(mapping, collect_losses=True) as scope,
    ):
        if model._call_has_training_arg:
            outputs = model(batch.x, training=True)
        else:
            outputs = model(batch.x)
        loss = model._compute_loss(
            x=batch.x,
            y=batch.y,
            y_pred=outputs,
            sample_weight=batch.sample_weight,
            training=True,
        )
    return loss, outputs, scope


def current(model: keras.Model, scope: keras.StatelessScope) -> list[tf.Tensor]:
    """Returns what the forward left in the trainable variables.

    Keras differentiates by the variable as the loss reads it: by what a layer
    (SpectralNormalization) has put there from the weights alone.
    """
    return [scope.get_current_value(v) for v in model.trainable_variables]


def keras_masks(outputs: Any) -> dict[int, tf.Tensor]:
    """Returns the Keras masks of outputs, keyed by flat position."""
    masks = {
        i: getattr(t, "_keras_mask", None)
        for i, t in enumerate(tf.nest.flatten(outputs))
    }
    return {i: m for i, m in masks.items() if m is not None}


def penalty_gradients(model: keras.Model) -> dict[int, tf.Tensor]:
    """Returns the gradients of the weight regularisers by variable position.

    They are functions of the weights alone and cost no privacy.
    """
    gradients = {}
    for i, variable in enumerate(model.trainable_variables):
        if variable.regularizer is None:
            continue
        value = tf.convert_to_tensor(variable.value)
        with tf.GradientTape() as tape:
            tape.watch(value)
            penalty = variable.regularizer(value)
        gradient = tape.gradient(penalty, value)
        if gradient is not None:
            gradients[i] = tf.cast(dense(gradient), tf.float32)
    return gradients


def public_gradient(model: keras.Model, batch: Batch) -> dict[int, tf.Tensor]:
    """Returns the plain gradient of a PUBLIC batch's compiled loss.

    Args:
        model: The model.
        batch: Public examples: nothing clips or noises their gradient.

    Returns:
        Float32 gradients by position, without weight regularisers.
    """
    values = [tf.convert_to_tensor(v.value) for v in model.trainable_variables]
    seeds = [(g.state, g.next()) for g in seed_generators(model)]
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(values)
        loss, _, _ = forward(model, values, batch, seeds)
    return {
        i: tf.cast(dense(g), tf.float32)
        for i, g in enumerate(tape.gradient(loss, values))
        if g is not None
    }


def penalty(model: keras.Model) -> tf.Tensor:
    """Returns the sum of the weight regularisers, a float32 scalar."""
    terms = [
        tf.cast(v.regularizer(tf.convert_to_tensor(v.value)), tf.float32)
        for v in model.trainable_variables
        if v.regularizer is not None
    ]
    return tf.add_n(terms) if terms else tf.zeros([])


def seed_generators(model: keras.Model) -> list[Any]:
    """Returns all seed generators that the model's layers may draw from."""
    found: dict[int, Any] = {}
    for layer in model._flatten_layers(include_self=True, recursive=True):
        for generator in getattr(layer, "_seed_generators", []):
            found.setdefault(id(generator), generator)
    shared = global_generator()
    found.setdefault(id(shared), shared)
    return list(found.values())


def global_generator() -> Any:
    """Returns Keras' own seed generator, which must exist before a trace."""
    with tf.init_scope():
        return seed_generator.global_seed_generator()


@contextlib.contextmanager
def without_regularizers(model: keras.Model) -> Iterator[None]:
    """Hides weight regularisers from `model.losses` while inside."""
    hidden = [
        (v, v.regularizer)
        for v in model.trainable_variables
        if v.regularizer is not None
    ]
    try:
        for variable, _ in hidden:
            variable.regularizer = None
        yield
    finally:
        for variable, regularizer in hidden:
            variable.regularizer = regularizer


@contextlib.contextmanager
def without_rematerialization(model: keras.Model) -> Iterator[None]:
    """Keeps activations while inside.

    A layer under `keras.RematScope` is computed again in the backward pass,
    outside this module's scope: it would read the variables themselves, and
    their gradients would be lost. Micro-batches bound memory instead.
    """
    hidden = [
        (layer, layer._remat_mode)
        for layer in model._flatten_layers()
        if layer._remat_mode is not None
    ]
    try:
        for layer, _ in hidden:
            layer._remat_mode = None
        yield
    finally:
        for layer, mode in hidden:
            layer._remat_mode = mode


def dense(gradient: Any) -> tf.Tensor:
    """Returns the gradient as a dense tensor (embeddings yield slices)."""
    return tf.convert_to_tensor(gradient)


def _first(tensor: tf.Tensor) -> tf.Tensor:
    if tensor.shape.rank == 0 or tensor.shape[0] not in (1, None):
        raise ValueError(
            "Every output of the model must have one row an example. Received "
            f"for one example: {tensor.name!r} of shape {tensor.shape}."
        )
    return tf.squeeze(tensor, 0)
