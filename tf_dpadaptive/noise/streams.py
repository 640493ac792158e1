r"""Streaming C⁻¹z where a row of C⁻¹ is a sum over earlier white noise.

White noise is a function of its step (see `keys`), so that a term of the past
is drawn again instead of kept: no memory, and one draw more a term.

The numbers of C⁻¹ that a run uses are held in a variable among the buffers: a
resumed run must go on with the very matrix that it began with, also where an
optimiser of another version would find a slightly different one.
"""

import abc
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf
from numpy.typing import ArrayLike

from tf_dpadaptive import _validate
from tf_dpadaptive.noise.mechanism import NoiseStream, Shape, WhiteNoise


def buffer(values: ArrayLike | tf.Tensor, name: str) -> tf.Variable:
    """Returns a plain variable that lives outside any graph being traced."""
    return tf.Variable(values, trainable=False, name=name)


class CorrelatedStream(NoiseStream):
    """A stream that is bound to `num_steps` steps.

    Steps outside 0..num_steps - 1 have no row of C⁻¹. On the host they raise;
    inside a compiled function they give NaN, since noise of another law would
    be a silent loss of privacy.

    Args:
        white: Source of white noise.
        shapes: Shapes of the variables.
        num_steps: n; None raises.
        stream: Which of the releases of a step this is.
    """

    def __init__(
        self,
        white: WhiteNoise,
        shapes: Sequence[Shape],
        num_steps: int | None,
        stream: int,
    ) -> None:
        if num_steps is None:
            raise ValueError(
                "Correlated noise needs `num_steps`, the number of updates of "
                "the whole run. Received: num_steps=None. Give the plan "
                "num_steps."
            )
        _validate.positive_integer(num_steps=num_steps)
        self._white = white
        self._shapes = [tuple(int(side) for side in s) for s in shapes]
        self._num_steps = int(num_steps)
        self._stream = stream
        self.buffers: Sequence[tf.Variable] = ()

    def next(self, step: tf.Tensor) -> list[tf.Tensor]:
        """See `NoiseStream.next`.

        Raises:
            ValueError: if `step` is known to lie outside 0..num_steps - 1.
        """
        step = tf.convert_to_tensor(step, tf.int64)
        known = tf.get_static_value(step)
        if known is not None and not 0 <= int(known) < self._num_steps:
            raise ValueError(
                f"`step` must lie in 0..{self._num_steps - 1}: correlated "
                "noise is bound to the steps it was made for. Received: "
                f"step={int(known)}. Make a plan with more steps."
            )
        inside = tf.logical_and(step >= 0, step < self._num_steps)
        return self._next(step, tf.where(inside, 1.0, np.nan))

    @abc.abstractmethod
    def _next(self, step: tf.Tensor, one: tf.Tensor) -> list[tf.Tensor]:
        """The noise times `one`, which is 1 or, at no step of ours, NaN."""

    def _white_noise(self, step: tf.Tensor, variable: int) -> tf.Tensor:
        return self._white.normal(
            step, variable, self._stream, self._shapes[variable]
        )


def assign_row(
    rows: tf.Variable, part: tf.Tensor | int, place: tf.Tensor, row: tf.Tensor
) -> None:
    """Writes `rows[part, place]` in place.

    By scatter: `rows[part, place].assign(row)` first reads (and, once assigned
    by slices, copies) all of `rows`, and XLA compiles it anew for every place.

    Args:
        rows: Variable of rank 3.
        part: int64 scalar.
        place: int64 scalar.
        row: What to write, of rank 1.
    """
    indices = tf.stack([tf.cast(part, tf.int64), place])
    tf.raw_ops.ResourceScatterNdUpdate(
        ref=rows.handle, indices=indices[None], updates=row[None]
    )


#: Position of the first weight of a step's row, and how many it has.
Span = Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]


# tf.gather, not weights[i]: XLA compiles a slice anew for every beginning.
class RegeneratingStream(CorrelatedStream):
    """(C⁻¹z)_t = Σ_i w[i] z_{t - lag[i]}, past white noise drawn again.

    The sum is over i in `span(t)`; its first term must have lag 0.

    Args:
        white: Source of white noise.
        shapes: Shapes of the variables.
        num_steps: n.
        stream: Which of the releases of a step this is.
        weights: Numbers of C⁻¹, shape (any,).
        span: Gives the terms of step t as (first, count), int64 scalars.
        lags: Steps back, one for each weight; None for first + i is i.
    """

    def __init__(
        self,
        white: WhiteNoise,
        shapes: Sequence[Shape],
        num_steps: int | None,
        stream: int,
        *,
        weights: ArrayLike,
        span: Span,
        lags: ArrayLike | None = None,
    ) -> None:
        super().__init__(white, shapes, num_steps, stream)
        self._span = span
        with tf.init_scope():
            self._weights = buffer(
                np.asarray(weights, np.float32), "noise_weights"
            )
            self._lags = None if lags is None else tf.constant(lags, tf.int64)
        self.buffers = [self._weights]

    def _next(self, step: tf.Tensor, one: tf.Tensor) -> list[tf.Tensor]:
        first, count = self._span(step)
        weights = self._weights.read_value()

        def noise(variable: int) -> tf.Tensor:
            def add(i: tf.Tensor, total: tf.Tensor) -> list[tf.Tensor]:
                lag = i - first
                if self._lags is not None:
                    lag = tf.gather(self._lags, i)
                past = self._white_noise(step - lag, variable)
                return [i + 1, total + tf.gather(weights, i) * past]

            fresh = self._white_noise(step, variable)
            _, total = tf.while_loop(
                lambda i, _: i < first + count,
                add,
                [first + 1, one * tf.gather(weights, first) * fresh],
                parallel_iterations=1,
            )
            return total

        return [noise(variable) for variable in range(len(self._shapes))]


class RememberingStream(CorrelatedStream):
    """The same sum for every lag in order, from kept white noise.

    For rows as long as the run, where drawing all again would be too slow:
    `num_steps` times the size of the variables in memory.

    Args:
        white: Source of white noise.
        shapes: Shapes of the variables.
        num_steps: n.
        stream: Which of the releases of a step this is.
        weights: Numbers of C⁻¹, shape (any,).
        span: As for `RegeneratingStream`; weight first + i has lag i.
    """

    def __init__(
        self,
        white: WhiteNoise,
        shapes: Sequence[Shape],
        num_steps: int | None,
        stream: int,
        *,
        weights: ArrayLike,
        span: Span,
    ) -> None:
        super().__init__(white, shapes, num_steps, stream)
        self._span = span
        n = self._num_steps
        with tf.init_scope():
            self._weights = buffer(
                np.asarray(weights, np.float32), "noise_weights"
            )
            self._kept = [
                buffer(tf.zeros([1, n, size(s)]), "noise_history")
                for s in self._shapes
            ]
        self.buffers = [self._weights, *self._kept]

    def _next(self, step: tf.Tensor, one: tf.Tensor) -> list[tf.Tensor]:
        first, count = self._span(step)
        lags = step - tf.range(self._num_steps, dtype=tf.int64)
        known = tf.logical_and(lags >= 0, lags < count)
        places = first + tf.where(known, lags, 0)
        row = one * tf.where(known, tf.gather(self._weights, places), 0.0)
        noises: list[tf.Tensor] = []
        for variable, kept in enumerate(self._kept):
            fresh = self._white_noise(step, variable)
            assign_row(kept, 0, step, tf.reshape(fresh, [-1]))
            noise = tf.linalg.matvec(kept[0], row, transpose_a=True)
            noises.append(tf.reshape(noise, self._shapes[variable]))
        return noises


def size(shape: Shape) -> int:
    """Returns the number of entries of a variable of this shape."""
    return int(np.prod(shape, dtype=np.int64))
