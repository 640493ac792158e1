r"""Secret keys: where every random number of the noise comes from.

noise(step, variable, stream) = Philox normals keyed by a chain of three
pseudo-random functions (Philox itself), one for each word of the address:

    a = F[w0](step, w1)
    b = F[w2 ⊕ a0](variable, w3 ⊕ a1)
    c = F[b0](stream, b1)
    noise = normals(key=c0, counter=(0, c1))

where w0..w3 are 256 bits from the operating system. Words are never added or
packed into one another, so (3, 4) and (4, 3) do not share a stream, and all
bits matter in eager, graph and XLA alike (the high-level `stateless_*` ops drop
the upper half of 64-bit seeds under XLA).

The secret undoes the privacy of a released model: whoever holds it can subtract
the noise. This class is plain Python on purpose, so that no Keras or TensorFlow
tracking finds it, and it refuses to be copied or pickled.
"""

import hashlib
import os
import warnings
from typing import Any, NoReturn

import numpy as np
import tensorflow as tf

from tf_dpadaptive.noise import philox
from tf_dpadaptive.noise.gaussian import standard_normal


def _bits(value: Any) -> tf.Tensor:
    return tf.bitcast(tf.convert_to_tensor(value, tf.int64), tf.uint64)


def _prf(key: tf.Tensor, high: tf.Tensor, low: tf.Tensor) -> list[tf.Tensor]:
    """One Philox block: two uint64 words from a 64-bit key and 128 bits."""
    block = philox.stream(key, low, high, [2], tf.uint64)
    return tf.unstack(block, num=2)


def _secret_words(seed: int | None) -> np.ndarray:
    if seed is None:
        material = os.urandom(32)
    else:
        material = hashlib.sha256(f"tf_dpadaptive:{seed}".encode()).digest()
    return np.frombuffer(material, dtype=np.int64)


class SecretKeys:
    """Keyed noise, and the count of the steps that have used it.

    Args:
        seed: None (the secret comes from the operating system) or a whole
            number, for tests: whoever knows it can remove the noise.

    A restored run continues with `renew`: steps not yet taken draw from a
    fresh secret, and earlier secrets remain only to regenerate past terms of
    correlated noise. Each row of `eras` is (first step, w0, w1, w2, w3).
    """

    def __init__(self, seed: int | None = None) -> None:
        if seed is not None:
            if isinstance(seed, bool) or not isinstance(
                seed, (int, np.integer)
            ):
                raise TypeError(
                    "`seed` must be None or a whole number. "
                    f"Received: seed={seed!r}."
                )
            warnings.warn(
                "A DP optimizer was given `seed`: whoever knows the seed can "
                "remove the noise, so the trained model has no privacy. Use "
                "it in tests only.",
                stacklevel=3,
            )
        self.seed = None if seed is None else int(seed)
        self._process = os.getpid()
        with tf.init_scope():
            # Fed as tensors: a constant would sit in every exported graph.
            self.step = tf.Variable(
                0, dtype=tf.int64, trainable=False, name="noise_step"
            )
            self.eras = tf.Variable(
                np.concatenate([[np.int64(0)], _secret_words(seed)])[None],
                dtype=tf.int64,
                shape=[None, 5],
                trainable=False,
                name="noise_eras",
            )

    def normal(
        self, step: Any, variable: int, stream: int, shape: tuple[int, ...]
    ) -> tf.Tensor:
        """Returns float32 N(0, 1) noise, a function of secret and address."""
        step = tf.convert_to_tensor(step, tf.int64)
        words = self._words(step)
        a0, a1 = _prf(words[0], _bits(step), words[1])
        mix = tf.bitwise.bitwise_xor
        b0, b1 = _prf(mix(words[2], a0), _bits(variable), mix(words[3], a1))
        c0, c1 = _prf(b0, _bits(stream), b1)
        return standard_normal(c0, c1, shape)

    def renew_after_fork(self) -> None:
        """Draws a fresh secret where this process is a copy of another.

        Forked processes share their memory, and with it the secret: their
        noise would be the same.
        """
        if self._process == os.getpid():
            return
        self._process = os.getpid()
        self.load(self.state())

    def _words(self, step: tf.Tensor) -> list[tf.Tensor]:
        """The secret in force at `step`: that of the last era begun by it."""
        eras = self.eras.read_value()
        begun = tf.cast(eras[:, 0] <= step, tf.int64)
        row = tf.gather(eras, tf.reduce_sum(begun) - 1)
        return [_bits(row[1 + i]) for i in range(4)]

    def state(self) -> dict[str, np.ndarray]:
        """Returns the secret itself, for `dpa.checkpoint` and nothing else."""
        return {"step": self.step.numpy(), "eras": self.eras.numpy()}

    def load(self, state: dict[str, np.ndarray]) -> None:
        """Takes up a checkpoint: old eras for the past, a fresh one from now.

        With `seed` the old secret goes on, so that a seeded run resumes bit
        for bit.
        """
        step = int(state["step"])
        eras = np.asarray(state["eras"], np.int64)
        if self.seed is None:
            fresh = np.concatenate([[np.int64(step)], _secret_words(None)])
            eras = np.concatenate([eras[eras[:, 0] < step], fresh[None]])
        self.step.assign(step)
        self.eras.assign(eras)

    def _refuse(self, *_: Any) -> NoReturn:
        raise TypeError(
            "The noise secret can't be copied or pickled: two runs with one "
            "secret would share their noise. Use `dpa.checkpoint.save`."
        )

    __reduce_ex__ = _refuse
    __deepcopy__ = _refuse
    __copy__ = _refuse
