"""The noise of a TF-Privacy query as a mechanism; see `tf_privacy`.

plan = PrivacyPlan(0.8, ..., noise=noise.FromDPQuery(query))
"""

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_dpadaptive.noise import tf_privacy
from tf_dpadaptive.noise.independent import Independent
from tf_dpadaptive.noise.mechanism import (
    NoiseMechanism,
    NoiseStream,
    Shape,
    WhiteNoise,
)
from tf_dpadaptive.noise.streams import CorrelatedStream
from tf_dpadaptive.noise.tree import TreeAggregation


@keras.saving.register_keras_serializable(package="tf_dpadaptive")
class FromDPQuery(NoiseMechanism):
    """The noise of a TF-Privacy query, as a mechanism.

    Args:
        query: `GaussianSumQuery`; `TreeResidualSumQuery`, plain or efficient,
            made by `build_l2_gaussian_query`; `RestartQuery` of that tree with
            a `PeriodicRoundRestartIndicator` without warm-up; or what
            `as_dp_query` returned. Its own clip norm, standard deviation and
            seed are NOT used: σ is the plan's, ζ the optimizer's, and the
            numbers come from the secret keys (see the module). Or the
            description that `get_config` gives.

    Raises:
        ValueError: for other queries: their noise, and so its ε, is not known.

    Privacy: that of `Independent()` or `TreeAggregation(...)`, whose law the
        noise has. After a restore the next step draws from a fresh secret:
        TF-Privacy draws a step ahead, which is done over.

    Cost: state of log2(num_steps) + 2 times the variables. Not under XLA
    (`jit_compile`): the tree's state changes its shape from step to step.
    `Independent()` and `TreeAggregation(...)` have the same law, work there
    and cost less; the bridge is for code that has a query.
    """

    def __init__(self, query: Any) -> None:
        self._config = (
            dict(query)
            if isinstance(query, Mapping)
            else tf_privacy.described(query)
        )
        self._law = _law(self._config)
        self.bands = self._law.bands

    @property
    def correlated(self) -> bool:  # pyright: ignore
        """Whether the query is a tree."""
        return self._law.correlated

    def stream(
        self,
        white: WhiteNoise,
        shapes: Sequence[Shape],
        *,
        num_steps: int | None,
        stream: int = 0,
    ) -> NoiseStream:
        """See `NoiseMechanism.stream`.

        Raises:
            ImportError: if TF-Privacy can't be had.
            ValueError: if the query's records have other shapes.
        """
        if "mechanism" in self._config:
            return self._law.stream(
                white, shapes, num_steps=num_steps, stream=stream
            )
        wanted = self._config.get("shapes")
        given = [list(shape) for shape in shapes]
        if wanted is not None and wanted != given:
            raise ValueError(
                f"`query` was made for records of shapes {wanted}, but the "
                f"variables have shapes {given}. Make it with the "
                "`record_specs` of the model's trainable variables."
            )
        if not isinstance(self._law, TreeAggregation):
            return _WhiteStream(
                self._law.stream(white, shapes, num_steps=None, stream=stream),
                self._law,
            )
        return _TreeStream(white, shapes, num_steps, stream, law=self._law)

    def sensitivity(
        self, num_steps: int, min_separation: int, max_participations: int
    ) -> float:
        """See `NoiseMechanism.sensitivity`."""
        return self._law.sensitivity(
            num_steps, min_separation, max_participations
        )

    def row_norms_squared(self, num_steps: int) -> np.ndarray:
        """See `NoiseMechanism.row_norms_squared`."""
        return self._law.row_norms_squared(num_steps)

    def prefix_errors_squared(self, num_steps: int) -> np.ndarray:
        """See `NoiseMechanism.prefix_errors_squared`."""
        return self._law.prefix_errors_squared(num_steps)

    def get_config(self) -> dict[str, Any]:
        """Returns a description of the query, without its numbers."""
        return {"query": dict(self._config)}


def _law(config: Mapping[str, Any]) -> NoiseMechanism:
    """The mechanism of the package that has the noise's law."""
    if "mechanism" in config:
        return keras.saving.deserialize_keras_object(config["mechanism"])
    if config["name"] == "GaussianSumQuery":
        return Independent()
    return TreeAggregation(
        honaker=config["efficient"], restart_every=config["restart_every"]
    )


def _refuse_xla(law: NoiseMechanism) -> None:
    from tensorflow.python.ops import control_flow_util

    graph = tf.compat.v1.get_default_graph()
    if control_flow_util.GraphOrParentsInXlaContext(graph):
        raise ValueError(
            "FromDPQuery does not run under XLA (jit_compile=True): the state "
            "of TF-Privacy's tree changes its shape from step to step, and "
            "its Gaussian query gives the same numbers in every process "
            f"there. Compile with jit_compile=False, or use {law!r}, whose "
            "noise has the same law."
        )


class _WhiteStream(NoiseStream):
    """Noise of `GaussianSumQuery`: of its law, from the keys."""

    def __init__(self, inner: NoiseStream, law: NoiseMechanism) -> None:
        self._inner = inner
        self._law = law

    def next(self, step: tf.Tensor) -> list[tf.Tensor]:
        _refuse_xla(self._law)
        return self._inner.next(step)


class _TreeStream(CorrelatedStream):
    """Runs TF-Privacy's tree.

    Its state before step t holds the nodes of leaf t. What is kept after step
    t is that state, and not the next one, which holds noise of step t + 1: a
    run that is restored must draw that from its own secret.
    """

    def __init__(
        self,
        white: WhiteNoise,
        shapes: Sequence[Shape],
        num_steps: int | None,
        stream: int,
        *,
        law: TreeAggregation,
    ) -> None:
        super().__init__(white, shapes, num_steps, stream)
        self._law = law
        self._scale = float(np.sqrt(law.levels(self._num_steps)))
        self._query = self._make_query()
        state = _graph_of(self._query.initial_global_state)
        # Rows of the nodes that are kept come and go; all else has a shape.
        tree = self._tree(state)
        free = (*tree.level_buffer, tree.level_buffer_idx)
        with tf.init_scope():
            self._state = tf.nest.map_structure(
                lambda x: _relaxed(x, any(x is y for y in free)), state
            )
        self.buffers = tf.nest.flatten(self._state)

    def _next(self, step: tf.Tensor, one: tf.Tensor) -> list[tf.Tensor]:
        _refuse_xla(self._law)
        kept = tf.nest.map_structure(lambda v: v.read_value(), self._state)
        zeros = [tf.zeros(shape) for shape in self._shapes]

        def advanced() -> Any:
            # Draws of this step are addressed by the step (see `_generator`).
            fresh = self._with_address(kept, step)
            return tf.nest.flatten(
                self._query.get_noised_result(zeros, fresh)[1]
            )

        state = tf.nest.pack_sequence_as(
            self._state,
            tf.cond(
                step == 0,
                lambda: tf.nest.flatten(self._query.initial_global_state()),
                advanced,
            ),
        )
        noise = self._query.get_noised_result(zeros, state)[0]
        for variable, value in zip(
            self.buffers, tf.nest.flatten(state), strict=True
        ):
            variable.assign(value)
        return [
            one * self._scale * tf.ensure_shape(x, shape)
            for x, shape in zip(noise, self._shapes, strict=True)
        ]

    def _tree(self, state: Any) -> Any:
        restarts = self._law.restart_every is not None
        return (state.inner_query_state if restarts else state).tree_state

    def _with_address(self, state: Any, step: tf.Tensor) -> Any:
        tree = self._tree(state)
        address = tf.stack([step, tf.zeros_like(step)])
        tree = tree._replace(value_generator_state=address)
        if self._law.restart_every is None:
            return state._replace(tree_state=tree)
        inner = state.inner_query_state._replace(tree_state=tree)
        return state._replace(inner_query_state=inner)

    def _make_query(self) -> Any:
        tree = tf_privacy.library(
            "tree_aggregation_query"
        ).TreeResidualSumQuery(
            record_specs=[tf.TensorSpec(s) for s in self._shapes],
            noise_generator=self._generator(),
            clip_fn=None,  # records are clipped before they come here
            clip_value=0.0,
            use_efficient=self._law.honaker,
        )
        if self._law.restart_every is None:
            return tree
        restarts = tf_privacy.library("restart_query")
        return restarts.RestartQuery(
            tree,
            restarts.PeriodicRoundRestartIndicator(self._law.restart_every),
        )

    def _generator(self) -> Any:
        """Draw i of step t, from the keys; its state is (t, i)."""
        white, shapes, stream = self._white, self._shapes, self._stream
        base: type = tf_privacy.library("tree_aggregation").ValueGenerator

        class Keyed(base):  # pyright: ignore[reportGeneralTypeIssues]
            def initialize(self) -> tf.Tensor:
                return tf.zeros([2], tf.int64)

            def next(self, state: tf.Tensor) -> tuple[Any, tf.Tensor]:
                step, draw = tf.unstack(state)
                noise = [
                    white.normal(step, draw * len(shapes) + i, stream, shape)
                    for i, shape in enumerate(shapes)
                ]
                return noise, tf.stack([step, draw + 1])

        return Keyed()


def _graph_of(function: Any) -> Any:
    """The tensors that a function returns, symbolic: nothing is drawn."""
    traced: list[Any] = []
    tf.function(
        lambda: traced.append(function()), autograph=False
    ).get_concrete_function()
    return traced[0]


def _relaxed(symbol: tf.Tensor, free: bool) -> tf.Variable:
    shape = symbol.shape.as_list()
    return tf.Variable(
        tf.zeros([side or 0 for side in shape], symbol.dtype),
        shape=[None, *shape[1:]] if free else shape,
        trainable=False,
        name="noise_query_state",
    )
