"""Small models, data and the update that single examples would give."""

import logging
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tf_dpadaptive as dpa
from tf_dpadaptive.batch import Batch
from tf_dpadaptive.noise.keys import SecretKeys

CLIP = 0.5
ROWS = 8


def plan(sigma: float = 0.0, batch: int = ROWS, **fields: Any) -> Any:
    """A plan without limit, unless `num_steps` is given."""
    fields = {"num_examples": 4 * batch, "delta": 1e-3, **fields}
    return dpa.PrivacyPlan(sigma, batch, **fields)


def sgd(sigma: float = 0.0, rate: Any = 1.0, clip: float = CLIP, **fields: Any):
    """An optimizer whose update is the released gradient itself."""
    return dpa.optimizers.DPSGD(rate, clip, plan(sigma, **fields), seed=1)


def data(rows: int = ROWS, features: int = 4, classes: int = 3, seed: int = 0):
    """x and labels y of rows of different lengths."""
    rng = np.random.default_rng(seed)
    length = 2.0 ** rng.integers(-3, 4, (rows, 1))
    x = (length * rng.standard_normal((rows, features))).astype(np.float32)
    return x, rng.integers(0, classes, rows).astype(np.int32)


def mlp(features: int = 4, classes: int = 3) -> keras.Sequential:
    return keras.Sequential(
        [
            keras.Input((features,)),
            keras.layers.Dense(5, activation="tanh", name="hidden"),
            keras.layers.Dense(classes, name="head"),
        ]
    )


def labels_loss(**arguments: Any) -> keras.losses.Loss:
    return keras.losses.SparseCategoricalCrossentropy(
        from_logits=True, **arguments
    )


def compiled(
    model: Any = None,
    optimizer: Any = None,
    *,
    loss: Any = None,
    clipping: str = "auto",
    microbatch_size: int | None = None,
    self_check: bool = False,
    run_eagerly: bool = True,
    **arguments: Any,
) -> Any:
    """A privatized, compiled model; eager and unchecked: soonest ready."""
    model = dpa.privatize(
        mlp() if model is None else model,
        clipping=clipping,
        microbatch_size=microbatch_size,
        self_check=self_check,
    )
    model.compile(
        sgd(num_examples=ROWS) if optimizer is None else optimizer,
        loss=labels_loss() if loss is None else loss,
        run_eagerly=run_eagerly,
        **arguments,
    )
    return model


def flat(model: Any) -> np.ndarray:
    """All trainable weights in one float64 vector."""
    return np.concatenate(
        [np.ravel(w).astype(np.float64) for w in values(model)]
    )


def values(model: Any) -> list[np.ndarray]:
    return [np.asarray(v.numpy()) for v in model.trainable_variables]


def assign(model: Any, weights: Any) -> None:
    for variable, value in zip(model.trainable_variables, weights, strict=True):
        variable.assign(value)


def taken(model: Any, action: Callable[[], Any]) -> np.ndarray:
    """What an action subtracts from the weights."""
    before = flat(model)
    action()
    return before - flat(model)


def alone(
    model: Any, x: Any, y: Any = None, sample_weight: Any = None
) -> np.ndarray:
    """Gradients (n, parameters) of each example by itself, as Keras has them.

    Only Keras' own `compute_loss` on batches of one: none of the engines.
    """
    size = len(tf.nest.flatten(x)[0])
    gradients = []
    for i in range(size):
        one = tf.nest.map_structure(
            lambda t, i=i: None if t is None else t[i : i + 1],
            [x, y, sample_weight],
        )
        with tf.GradientTape() as tape:
            loss = model.compute_loss(
                x=one[0],
                y=one[1],
                y_pred=model(one[0], training=True),
                sample_weight=one[2],
                training=True,
            )
        found = tape.gradient(
            loss,
            [v.value for v in model.trainable_variables],
            unconnected_gradients="zero",
        )
        gradients.append(
            np.concatenate(
                [np.ravel(tf.convert_to_tensor(g)) for g in found]
            ).astype(np.float64)
        )
    return np.array(gradients)


def clipped_mean(
    gradients: np.ndarray, clip: float = CLIP, divisor: float = ROWS
) -> np.ndarray:
    norms = np.linalg.norm(gradients, axis=1, keepdims=True)
    factors = np.minimum(1.0, clip / np.maximum(norms, 1e-30))
    return (factors * gradients).sum(0) / divisor


def padded(x: Any, y: Any = None, weight: Any = None, extra: int = ROWS):
    """A batch with `extra` rows of junk that are padding."""

    def junk(part: Any) -> Any:
        if part is None:
            return None
        part = np.asarray(part)
        bad = np.full((extra, *part.shape[1:]), 0, part.dtype)
        if part.dtype.kind == "f":
            bad[:] = np.nan
        return tf.constant(np.concatenate([part, bad]))

    parts = tf.nest.map_structure(junk, [x, y, weight])
    rows = len(tf.nest.flatten(x)[0])
    return Batch(*parts, tf.range(rows + extra) >= rows)


def replay_noise(monkeypatch: Any) -> None:
    """Draws noise from a table: the same in eager, graph and XLA."""

    def normal(self: Any, step: Any, variable: int, stream: int, shape: Any):
        rng = np.random.default_rng([variable, stream])
        table = rng.standard_normal((32, *shape)).astype(np.float32)
        return tf.gather(tf.constant(table), step)

    monkeypatch.setattr(SecretKeys, "normal", normal)


def state(model: Any) -> tuple[list[np.ndarray], Any, int]:
    """Everything that a refused update must leave alone."""
    return values(model), model.ledger.to_config(), model.ledger.updates


def unchanged(model: Any, before: Any) -> bool:
    weights, ledger, updates = state(model)
    return (
        all(
            np.array_equal(a, b)
            for a, b in zip(weights, before[0], strict=True)
        )
        and ledger == before[1]
        and updates == before[2]
    )


def output_of(script: str, **options: Any) -> str:
    """What a script prints that runs in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        check=False,
        **options,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextmanager
def log_lines() -> Iterator[list[str]]:
    """What the package says in its log."""
    lines: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    logger, handler = logging.getLogger("tf_dpadaptive"), Keep()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
