"""Gradient streams to replay through a transcription and through the package.

The gradients do not depend on the parameters, so that a deviation is the
method's own and cannot feed on itself.
"""

import copy
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tests.reference import clip, noise_rows
from tests.reference.clip import Array, Shape
from tests.reference.method import Method

SHAPES: list[Shape] = [(3, 2), (4,), ()]


class Batch(NamedTuple):
    """One step's input; `per_example` is float32 (n, *shape) a variable."""

    per_example: list[NDArray[np.float32]]
    mask: NDArray[np.bool_]


def gradient_stream(
    shapes: Sequence[Shape],
    *,
    steps: int,
    examples: int,
    padding: int = 0,
    decades: float = 4.0,
    seed: int = 0,
) -> Iterator[Batch]:
    """Yields batches whose coordinates span `decades` orders of magnitude.

    Every coordinate has its own size and mean, every example its own length
    (some far above and below any clip norm of order 1). `padding` masked rows
    hold large junk that must not count.
    """
    rng = np.random.default_rng(seed)
    size = [10.0 ** rng.uniform(-decades, 0, shape) for shape in shapes]
    mean = [rng.standard_normal(shape) for shape in shapes]
    n = examples + padding
    for _ in range(steps):
        length = 10.0 ** rng.uniform(-1.5, 1.5, n)
        grads = []
        for shape, c, m in zip(shapes, size, mean, strict=True):
            one = (n,) + (1,) * len(shape)
            g = c * (m + rng.standard_normal((n, *shape)))
            g = g * length.reshape(one)
            g[examples:] = 1e3
            grads.append(g.astype(np.float32))
        yield Batch(grads, np.arange(n) < examples)


def parameters(shapes: Sequence[Shape], *, seed: int = 1) -> list[Array]:
    """Returns starting parameters, exact in float32."""
    rng = np.random.default_rng(seed)
    return [
        rng.standard_normal(s).astype(np.float32).astype(np.float64)
        for s in shapes
    ]


def run(
    ref: Method,
    shapes: Sequence[Shape] = tuple(SHAPES),
    *,
    steps: int = 14,
    permute: bool = False,
    strategy: Array | None = None,
    interrupt: int | None = None,
    seed: int = 3,
) -> Array:
    """Returns the parameters (flat) of every step of a replayed run.

    Args:
        ref: The method, fresh.
        shapes: Its variables.
        steps: Number of steps.
        permute: Whether to reverse the examples of every batch.
        strategy: C; None is independent noise.
        interrupt: Step before which the method is copied and thrown away.
        seed: Of gradients and noise.
    """
    c = np.eye(steps) if strategy is None else strategy
    noise = noise_rows.replay(c, shapes, streams=ref.streams, seed=seed + 1)
    stream = gradient_stream(shapes, steps=steps, examples=7, seed=seed)
    params, seen = parameters(shapes), []
    for t, (batch, rows) in enumerate(zip(stream, noise, strict=True)):
        if t == interrupt:
            ref = copy.deepcopy(ref)
        grads, mask = batch
        if permute:
            grads, mask = [g[::-1] for g in grads], mask[::-1]
        params = ref.step(params, grads, mask, rows)
        seen.append(clip.flatten(params))
    return np.array(seen)


def scalar(method: type, **own: Any) -> Any:
    """Returns a method on one scalar: ζ = 2, σ = 0.5, B = 2, so τ = 0.5."""
    defaults = {
        "l2_norm_clip": 2.0,
        "noise_multiplier": 0.5,
        "batch_size": 2,
        "learning_rate": 0.1,
    }
    return method([()], **{**defaults, **own})


def feed(ref: Method, theta: float, grads: Sequence[float], *z: float) -> float:
    """Steps a scalar method; one unit noise value a stream."""
    new = ref.step(
        [np.asarray(theta)],
        [np.array(grads, float)],
        np.ones(len(grads), bool),
        [[np.asarray(v)] for v in z],
    )
    return float(new[0])
