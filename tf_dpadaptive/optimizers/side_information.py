r"""Side information: the second moment comes from public data.

    h_t = gradient of the compiled loss on a PUBLIC batch (no noise)
    v_t = β2 v + (1-β2) h_t²
    g_t = privatized gradient of the private batch; with `scale_then_privatize`
          clipped and noised in coordinates s_t = 1/(√v̂_t + ε₁)
    m_t = β1 m + (1-β1) g_t;   θ ← θ - η m̂/(√v̂_t + ε)

References: Ganesh, McMahan, Thakurta, 2025, arXiv 2507.01129, Algorithm 9; Li,
Zaheer, Reddi, Smith, "Private adaptive optimization with side information"
(AdaDPS), 2022, arXiv 2202.05963. Departures: h_t joins v before it scales, as
h_t is public; AdaDPS' own form (SGD over √(P + ε), not un-scaled) is not this.
"""

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import ops
from keras.src.trainers.data_adapters import data_adapter_utils

from tf_dpadaptive import _validate
from tf_dpadaptive.batch import Batch
from tf_dpadaptive.clipping.geometry import IDENTITY, Geometry
from tf_dpadaptive.optimizers.dp_adam import DPAdam


@keras.saving.register_keras_serializable(package="tf_dpadaptive")
class DPAdamSideInformation(DPAdam):
    """Adam with private gradients and a public second moment.

    Args:
        learning_rate: η.
        l2_norm_clip: ζ.
        plan: The `PrivacyPlan`.
        public_batches: Iterable of batches (x, y[, sample_weight]) of equal
            shapes, of PUBLIC data; read once into tensors, one batch a step in
            turn. Not part of the config: after a load, give it again through
            `set_public_batches`.
        scale_then_privatize: Whether to clip and noise in coordinates scaled
            by the public second moment.
        scale_epsilon: ε₁ > 0 beside √v̂ in the scale. Default 1e-3.
        **kwargs: See `DPAdam`. Where public gradients are 0 (pixels that are
            always dark), noise is divided by `epsilon` alone: raise it to
            about 1e-3 there.

    Privacy: one Gaussian of multiplier σ a step for the private data. The
        public data have none.
    """

    hyperparameters = (
        *DPAdam.hyperparameters,
        "scale_then_privatize",
        "scale_epsilon",
    )

    def __init__(
        self,
        *args: Any,
        public_batches: Iterable[Any] | None = None,
        scale_then_privatize: bool = False,
        scale_epsilon: float = 1e-3,
        **kwargs: Any,
    ) -> None:
        _validate.positive(scale_epsilon=scale_epsilon)
        super().__init__(*args, **kwargs)
        self.scale_then_privatize = scale_then_privatize
        self.scale_epsilon = scale_epsilon
        self._pool: tuple[Any, ...] = ()
        self._pool_used = False
        self._public: Mapping[int, tf.Tensor] = {}
        if public_batches is not None:
            self.set_public_batches(public_batches)

    def set_public_batches(self, public_batches: Iterable[Any]) -> None:
        """Reads public batches into a fixed pool of tensors.

        Args:
            public_batches: See the class.

        Raises:
            ValueError: if there is none, or shapes differ.
            RuntimeError: if a step has used other public data: a compiled
                step would go on with those.
        """
        if self._pool_used:
            raise RuntimeError(
                "The public data are fixed once a step has used them. Compile "
                f"a new {type(self).__name__} with `public_batches=`."
            )
        batches = [
            Batch(*data_adapter_utils.unpack_x_y_sample_weight(element))
            for element in public_batches
        ]
        if not batches:
            raise ValueError(
                "`public_batches` must hold at least one batch. Received: "
                "public_batches with 0 elements."
            )
        flat = [tf.nest.flatten(b.without_none()) for b in batches]
        try:
            stacked = [np.stack(parts) for parts in zip(*flat, strict=True)]
        except ValueError as error:
            raise ValueError(
                "`public_batches` must be an iterable of batches (x, y[, "
                "sample_weight]), one batch as [(x, y)], all of the same "
                f"shapes (drop the remainder). Received: {error}."
            ) from None
        with tf.init_scope():
            pool = tuple(tf.constant(array) for array in stacked)
        # A function, since TensorFlow exchanges the dicts in attributes.
        pack = functools.partial(
            tf.nest.pack_sequence_as, batches[0].without_none()
        )
        self._hide_pool((pool, pack))

    @keras.src.utils.tracking.no_automatic_dependency_tracking
    def _hide_pool(self, pool: tuple[Any, ...]) -> None:
        self._pool = pool

    def observe(self, gradient_of: Callable[[Batch], Any]) -> None:
        """Takes the public gradient h_t of this step's slice of the pool."""
        if not self._pool:
            raise RuntimeError(
                f"{type(self).__name__} has no public data (they are not "
                "saved). Call `optimizer.set_public_batches(...)` first."
            )
        pool, pack = self._pool
        count = pool[0].shape[0]
        place = tf.cast(self.iterations.value, tf.int64) % count
        flat = [part[place] for part in pool]
        batch = pack(flat)
        try:
            self._public = gradient_of(batch.with_none())
        except (TypeError, ValueError, tf.errors.InvalidArgumentError) as error:
            shapes = [tuple(part.shape[1:]) for part in pool]
            raise ValueError(
                "`public_batches` must hold (x, y[, sample_weight]) as the "
                "model is trained on: the loss of one of them failed. "
                f"Received: batches with parts of shapes {shapes}. {error}"
            ) from error
        self._pool_used = True

    def _second_moment(self, index: int, v: Any) -> Any:
        h = self._public.get(index, 0.0)
        return self.beta_2 * v + (1 - self.beta_2) * ops.square(h)

    def geometry(self) -> Geometry:
        """1/(√v̂_t + ε₁), or the identity."""
        if not self.scale_then_privatize:
            return IDENTITY
        t = ops.cast(self.iterations + 1, "float32")
        debias = self.debias(self.beta_2, t)
        return Geometry(
            scale=[
                1.0
                / (
                    ops.sqrt(self._second_moment(i, v) / debias)
                    + self.scale_epsilon
                )
                for i, v in enumerate(self.slot("velocity"))
            ]
        )

    def extra_estimates(
        self, geometry: Geometry
    ) -> list[Mapping[int, tf.Tensor]]:
        """v_t, a function of public data."""
        moments = {
            i: self._second_moment(i, v)
            for i, v in enumerate(self.slot("velocity"))
        }
        self._public = {}
        return [moments]

    def rule(
        self, learning_rate: Any, t: Any, g: Any, v_t: Any, m: Any, v: Any
    ) -> Any:
        """θ ← θ - η m̂/(√v̂_t + ε)."""
        m = self.beta_1 * m + (1 - self.beta_1) * g
        m_hat = m / self.debias(self.beta_1, t)
        v_hat = v_t / self.debias(self.beta_2, t)
        step = m_hat / (ops.sqrt(v_hat) + self.stability)
        return learning_rate * step, (m, v_t)
