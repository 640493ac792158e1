"""A mechanism of the package as a TF-Privacy query; see `tf_privacy`.

query = noise.BLT(3).as_dp_query(1.0, 0.8, specs, num_steps=2000)
"""

import functools
from typing import Any, NamedTuple

import tensorflow as tf

from tf_dpadaptive import _validate
from tf_dpadaptive.noise import tf_privacy
from tf_dpadaptive.noise.keys import SecretKeys
from tf_dpadaptive.noise.mechanism import NoiseMechanism


class QueryState(NamedTuple):
    """Global state of the query of a mechanism: tensors, nothing else.

    It holds the secret. As sensitive as the data; see `as_dp_query`.

    Attributes:
        step: Number of the next result from 0, int64 scalar.
        eras: The secret, int64 (k, 5); see `keys.SecretKeys`.
        buffers: What the stream keeps.
    """

    step: Any
    eras: Any
    buffers: tuple[Any, ...]


def as_dp_query(
    mechanism: NoiseMechanism,
    l2_norm_clip: float,
    noise_multiplier: float,
    record_specs: Any,
    *,
    num_steps: int | None = None,
    seed: int | None = None,
) -> Any:
    """Returns a TF-Privacy `SumAggregationDPQuery` with a mechanism's noise.

    Each result is the sum of the clipped records and σ·ζ·(C⁻¹z)_t. What TF-
    Privacy calls the event is the Gaussian of one step for independent noise
    and `UnsupportedDpEvent` for correlated noise, as in its own tree queries:
    ask `PrivacyPlan.epsilon`.

    Args:
        mechanism: The noise.
        l2_norm_clip: ζ >= 1e-10. A record that is not finite counts as zero.
        noise_multiplier: σ >= 0, noise over the sensitivity ζ of one
            participation of one record (removed, added or zeroed; for replaced
            records give 2σ).
        record_specs: Nested `tf.TensorSpec`s of one record.
        num_steps: Number of results; needed by correlated noise. The result
            after the last raises, and inside a compiled function is NaN.
        seed: None, or a whole number for tests (a known seed is no privacy).

    Raises:
        ImportError: if TF-Privacy can't be had.

    Privacy: `initial_global_state` draws a secret of 256 bits from the
        operating system; call it outside of any `tf.function`. The state
        holds it, as that of TF-Privacy's tree holds its seed: never release a
        state, and go on from a stored one once only. Two runs from one state
        share their noise; `query.renewed(state)` gives the second run noise of
        its own from there on.
    """
    return _query_class()(
        mechanism, l2_norm_clip, noise_multiplier, record_specs, num_steps, seed
    )


def _wide(tensor: tf.Tensor) -> tf.Tensor:
    """At least float32: rounded to bfloat16, a clipped record is too long."""
    if tensor.dtype == tf.float64:
        return tensor
    return tf.cast(tensor, tf.float32)


@functools.lru_cache(maxsize=1)
def _query_class() -> type:
    import dp_accounting

    base: type = tf_privacy.library("dp_query").SumAggregationDPQuery

    class MechanismQuery(base):  # pyright: ignore[reportGeneralTypeIssues]
        """See `as_dp_query`."""

        def __init__(
            self,
            mechanism: NoiseMechanism,
            l2_norm_clip: float,
            noise_multiplier: float,
            record_specs: Any,
            num_steps: int | None,
            seed: int | None,
        ) -> None:
            _validate.clip_norm(l2_norm_clip=l2_norm_clip)
            _validate.non_negative(noise_multiplier=noise_multiplier)
            self.mechanism = mechanism
            self._clip = float(l2_norm_clip)
            self._sigma = float(noise_multiplier)
            self._specs = record_specs
            self._seed = seed
            self._keys = SecretKeys(seed)
            self._stream = mechanism.stream(
                self._keys,
                [tuple(spec.shape) for spec in tf.nest.flatten(record_specs)],
                num_steps=num_steps,
            )
            self._first = [b.numpy() for b in self._stream.buffers]

        def initial_global_state(self) -> QueryState:
            """Returns the state before the first result, with a new secret."""
            if not tf.executing_eagerly():
                raise RuntimeError(
                    "`initial_global_state` draws the secret: inside a "
                    "`tf.function` it would become a constant, the same in "
                    "every call. Call it outside."
                )
            keys = SecretKeys(self._seed)
            return QueryState(
                tf.constant(0, tf.int64),
                tf.constant(keys.eras.numpy()),
                tuple(tf.constant(x) for x in self._first),
            )

        def renewed(self, state: QueryState) -> QueryState:
            """Returns the state with a fresh secret for results to come."""
            keys = SecretKeys(self._seed)
            keys.load({"step": state.step.numpy(), "eras": state.eras.numpy()})
            return state._replace(eras=tf.constant(keys.eras.numpy()))

        def derive_sample_params(self, global_state: QueryState) -> tf.Tensor:
            """Returns the clip norm."""
            del global_state
            return tf.constant(self._clip, tf.float32)

        def initial_sample_state(self, template: Any = None) -> Any:
            """Returns zeros of the shape of a record, at least float32."""
            zeros = super().initial_sample_state(
                self._specs if template is None else template
            )
            return tf.nest.map_structure(_wide, zeros)

        def preprocess_record(self, params: Any, record: Any) -> Any:
            """Returns the record, clipped over all its parts together."""
            parts = [
                _wide(tf.convert_to_tensor(x)) for x in tf.nest.flatten(record)
            ]
            norm = tf.linalg.global_norm(
                [tf.cast(x, tf.float32) for x in parts]
            )
            factor = tf.minimum(1.0, params / tf.maximum(norm, params))
            factor = tf.where(tf.math.is_finite(norm), factor, 0.0)
            clipped = [
                tf.math.multiply_no_nan(x, tf.cast(factor, x.dtype))
                for x in parts
            ]
            return tf.nest.pack_sequence_as(record, clipped)

        def get_noised_result(
            self, sample_state: Any, global_state: QueryState
        ) -> tuple[Any, QueryState, Any]:
            """Returns (noised sum, next state, event)."""
            # The stream works on variables: state in, one step, state out.
            self._keys.eras.assign(global_state.eras)
            for kept, value in zip(
                self._stream.buffers, global_state.buffers, strict=True
            ):
                kept.assign(value)
            noise = self._stream.next(global_state.step)
            if self._sigma:
                scale = self._sigma * self._clip
                sums = [
                    x + tf.cast(scale * z, x.dtype)
                    for x, z in zip(
                        tf.nest.flatten(sample_state), noise, strict=True
                    )
                ]
                sample_state = tf.nest.pack_sequence_as(sample_state, sums)
            # Rounding to a lower precision comes after the noise.
            sample_state = tf.nest.map_structure(
                lambda x, spec: tf.cast(x, spec.dtype),
                sample_state,
                self._specs,
            )
            state = QueryState(
                global_state.step + 1,
                tf.identity(global_state.eras),
                tuple(tf.identity(b) for b in self._stream.buffers),
            )
            return sample_state, state, self._event()

        def _event(self) -> Any:
            if not self._sigma:
                return dp_accounting.NonPrivateDpEvent()
            if self.mechanism.correlated:
                return dp_accounting.UnsupportedDpEvent()
            return dp_accounting.GaussianDpEvent(self._sigma)

    return MechanismQuery
