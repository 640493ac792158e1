"""Layer randomness: each example draws its own, from its own seeds.

While a forward runs inside `layer_randomness`, Keras' random functions draw row
i of whatever they draw as a function of the seeds of example i, the number of
draws made before, and the place in the row. A dropout mask therefore does not
depend on the batch that an example is in: every engine, every size of chunk and
every amount of padding gives the same masks, and a replay of one layer for one
example gives that example's.

The numbers come from an integer hash, not from a cryptographic generator: no
privacy rests on them.
"""

import contextlib
import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf
from keras.src import backend
from keras.src.random.seed_generator import SeedGenerator, draw_seed

_MODULE = backend.random
_SIGMA_TAIL = 0.022750131948179195  # P(N(0, 1) < -2)


class Draws(NamedTuple):
    """Where the random numbers of a forward come from, and how far it is.

    Attributes:
        keys: int64 (n, 2) seeds of n examples, by `id` of a seed state.
        counts: Draws made so far, likewise.
    """

    keys: Mapping[int, tf.Tensor]
    counts: dict[int, int]

    @classmethod
    def of(cls, seeds: Sequence[tuple[keras.Variable, tf.Tensor]]) -> "Draws":
        """Returns the start of a forward.

        Args:
            seeds: Pairs of a seed state and int64 seeds, of shape (n, 2) or,
                for a single example, (2,).
        """
        keys = {
            id(state): tf.reshape(tf.cast(seed, tf.int64), [-1, 2])
            for state, seed in seeds
        }
        for state, seed in seeds:
            rows = 1 if seed.shape.rank == 1 else seed.shape[0]
            keys[id(state)] = tf.ensure_shape(keys[id(state)], [rows, 2])
        return cls(keys, dict.fromkeys(keys, 0))

    def as_now(self, keys: Mapping[int, tf.Tensor] | None = None) -> "Draws":
        """Returns a copy that goes on from here, maybe for other examples.

        Args:
            keys: Seeds of those examples; None keeps these.
        """
        return Draws(self.keys if keys is None else keys, dict(self.counts))


_active: list[Draws] = []


def current_draws() -> Draws | None:
    """Returns the draws of the forward that runs now, if any."""
    return _active[-1] if _active else None


@contextlib.contextmanager
def layer_randomness(draws: Draws) -> Iterator[None]:
    """Lets layers draw one row an example while inside.

    Args:
        draws: The seeds, and how many draws came before.
    """
    _active.append(draws)
    try:
        with contextlib.ExitStack() as stack:
            if len(_active) == 1:
                stack.enter_context(_replaced(SeedGenerator, "next", _next))
                for name, function in _FUNCTIONS.items():
                    stack.enter_context(_replaced(_MODULE, name, function))
            yield
    finally:
        _active.pop()


@contextlib.contextmanager
def _replaced(owner: Any, name: str, function: Any) -> Iterator[None]:
    original = getattr(owner, name)

    @functools.wraps(original)
    def replacement(*args: Any, **kwargs: Any) -> Any:
        return function(original, *args, **kwargs)

    setattr(owner, name, replacement)
    try:
        yield
    finally:
        setattr(owner, name, original)


def _next(original: Any, self: SeedGenerator, ordered: bool = True) -> Any:
    draws = _active[-1]
    key = id(self.state)
    if key not in draws.keys:
        return original(self, ordered)
    count = draws.counts[key]
    draws.counts[key] = count + 1
    return draws.keys[key] + tf.constant([[0, count * 0x9E3779B1]], tf.int64)


def _seed_of_one(original: Any, seed: tf.Tensor) -> tf.Tensor:
    """Seeds for functions that have no form for many examples."""
    if seed.shape.rank == 2:
        if seed.shape[0] != 1:
            raise NotImplementedError(
                "A layer draws from a random distribution that has no form "
                "for many examples at once."
            )
        seed = seed[0]
    return original(seed)


def _bits(seed: Any, shape: Any) -> tf.Tensor:
    """uint32 bits of `shape`: of many examples, one row each."""
    key = _key(seed)
    rows, dims = key.shape[0], _dims(shape)
    front = []
    if rows != 1:
        known = [d for d in dims[:1] if isinstance(d, int) and rows]
        if not dims or any(d not in (1, rows) for d in known):
            raise NotImplementedError(
                f"A layer draws random numbers of shape {tuple(dims)}, which "
                "are not one row an example."
            )
        front, dims = [tf.shape(key)[0] if rows is None else rows], dims[1:]
    words = tf.bitwise.bitwise_and(key, tf.constant(2**32 - 1, tf.int64))
    words = tf.cast(words, tf.uint32)
    first = _mixed(tf.bitwise.bitwise_xor(words[:, :1], _mixed(words[:, 1:])))
    second = _mixed(words[:, 1:] + first + _word(0x9E3779B9))
    place = tf.cast(tf.range(_product(dims)), tf.uint32) * _word(0x9E3779B1)
    x = tf.bitwise.bitwise_xor(place[None], first)
    x = _shifted(x, 16) * _word(0x21F0AAAD)
    x = _shifted(x + second, 15) * _word(0xD35A2D97)
    return tf.reshape(_shifted(x, 15), [*front, *dims])


def _key(seed: Any) -> tf.Tensor:
    """int64 (n, 2): one seed an example, the same for all if it is fixed."""
    key = tf.cast(draw_seed(seed), tf.int64)
    if key.shape.rank == 2:
        return key
    like = next(iter(_active[-1].keys.values()), key[None])
    return key[None] + tf.zeros_like(like)


def _dims(shape: Any) -> list[Any]:
    """Sizes, ints where they are known."""
    if tf.is_tensor(shape):
        static = tf.get_static_value(shape)
        return tf.unstack(shape) if static is None else [*map(int, static)]
    return [d if tf.is_tensor(d) else 1 if d is None else int(d) for d in shape]


def _product(dims: Sequence[Any]) -> Any:
    if all(isinstance(d, int) for d in dims):
        return math.prod(dims)
    return tf.reduce_prod(tf.stack(dims)) if dims else 1


def _word(value: int) -> tf.Tensor:
    return tf.constant(value, tf.uint32)


def _shifted(x: tf.Tensor, by: int) -> tf.Tensor:
    return tf.bitwise.bitwise_xor(x, tf.bitwise.right_shift(x, _word(by)))


def _mixed(x: tf.Tensor) -> tf.Tensor:
    """A bijection of 32-bit words without visible structure."""
    x = _shifted(x, 16) * _word(0x21F0AAAD)
    x = _shifted(x, 15) * _word(0xD35A2D97)
    return _shifted(x, 15)


def _unit(seed: Any, shape: Any) -> tf.Tensor:
    """float32 in (0, 1), on a grid of 2^-24."""
    bits = tf.bitwise.right_shift(_bits(seed, shape), _word(8))
    return (tf.cast(tf.cast(bits, tf.int32), tf.float32) + 0.5) * 2.0**-24


def _uniform(
    original: Any,
    shape: Any,
    minval: Any = 0.0,
    maxval: Any = 1.0,
    dtype: Any = None,
    seed: Any = None,
) -> tf.Tensor:
    del original
    minval, maxval = (tf.cast(t, tf.float32) for t in (minval, maxval))
    value = minval + (maxval - minval) * _unit(seed, shape)
    return tf.cast(value, dtype or backend.floatx())


def _normal(
    original: Any,
    shape: Any,
    mean: Any = 0.0,
    stddev: Any = 1.0,
    dtype: Any = None,
    seed: Any = None,
) -> tf.Tensor:
    del original
    value = mean + stddev * tf.math.ndtri(_unit(seed, shape))
    return tf.cast(value, dtype or backend.floatx())


def _truncated_normal(
    original: Any,
    shape: Any,
    mean: Any = 0.0,
    stddev: Any = 1.0,
    dtype: Any = None,
    seed: Any = None,
) -> tf.Tensor:
    del original
    inside = _SIGMA_TAIL + (1 - 2 * _SIGMA_TAIL) * _unit(seed, shape)
    value = mean + stddev * tf.math.ndtri(inside)
    return tf.cast(value, dtype or backend.floatx())


def _randint(
    original: Any,
    shape: Any,
    minval: Any,
    maxval: Any,
    dtype: str = "int32",
    seed: Any = None,
) -> tf.Tensor:
    del original
    bits = tf.cast(_bits(seed, shape), tf.int64)
    low, high = (tf.cast(t, tf.int64) for t in (minval, maxval))
    return tf.cast(low + tf.math.floormod(bits, high - low), dtype)


def _categorical(
    original: Any,
    logits: tf.Tensor,
    num_samples: int,
    dtype: str = "int64",
    seed: Any = None,
) -> tf.Tensor:
    del original
    rows, classes = logits.shape[0], logits.shape[1]
    rows = tf.shape(logits)[0] if rows is None else rows
    unit = _unit(seed, [rows, num_samples, classes])
    score = tf.cast(logits, tf.float32)[:, None] - tf.math.log(
        -tf.math.log(unit)
    )
    return tf.cast(tf.argmax(score, -1), dtype)


def _dropout(
    original: Any,
    inputs: tf.Tensor,
    rate: float,
    noise_shape: Any = None,
    seed: Any = None,
) -> tf.Tensor:
    if rate in (0.0, 1.0):
        return original(inputs, rate)
    given = [None] * inputs.shape.rank if noise_shape is None else noise_shape
    shape = [
        (
            (
                tf.shape(inputs)[i]
                if inputs.shape[i] is None
                else inputs.shape[i]
            )
            if size is None
            else size
        )
        for i, size in enumerate(given)
    ]
    keep = _unit(seed, shape) >= rate
    scaled = inputs * tf.cast(1.0 / (1.0 - rate), inputs.dtype)
    return tf.where(keep, scaled, tf.zeros_like(scaled))


_FUNCTIONS = {
    "_cast_seed": _seed_of_one,
    "categorical": _categorical,
    "dropout": _dropout,
    "normal": _normal,
    "randint": _randint,
    "truncated_normal": _truncated_normal,
    "uniform": _uniform,
}
