"""The contract that every DP optimizer keeps; each one's test inherits it.

A subclass names the optimizer (`make`) and its NumPy reference (`reference`).
"""

from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.optimizers.bench import Bench, distance, flat
from tests.reference import noise_rows, replay
from tf_dpadaptive import PrivacyPlan, privatize

B, SIGMA, CLIP, STEPS = 8, 0.7, 1.5, 14
SHAPES = [(3, 2), (4,), (), (2, 1, 2), (1, 2, 1, 2), (2, 1, 1, 2, 1)]
ADJACENCIES = ["zero_out", "add_or_remove", "replace"]
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def plan_of(**changes: Any) -> PrivacyPlan:
    """A small plan."""
    given = {
        "noise_multiplier": SIGMA,
        "expected_batch_size": B,
        "num_examples": 100,
        "num_steps": 40,
        "delta": 1e-3,
    }
    return PrivacyPlan(**{**given, **changes})


def neighbours(
    grads: Sequence[np.ndarray], adjacency: str
) -> Iterator[tuple[list[np.ndarray], np.ndarray]]:
    """Batches (gradients, mask) in which one example is another, or absent."""
    n = len(grads[0])
    for i in range(n):
        everyone, absent = np.ones(n, bool), np.arange(n) != i
        if adjacency == "zero_out":
            yield list(grads), absent
        elif adjacency == "add_or_remove":
            yield [g[absent] for g in grads], everyone[1:]
        else:
            # The opposite example is the farthest one; then a huge one.
            for times in (-1.0, -1e6):
                other = [g.copy() for g in grads]
                for g in other:
                    here = np.nan_to_num(g[i], posinf=1e30).astype("d")
                    g[i] = np.clip(times * here, -1e30, 1e30)
                yield other, everyone


class Contract:
    """Subclass it, and define `make` and `reference`."""

    #: Largest relative deviation from the NumPy reference.
    tolerance = 2e-4
    #: Whether the state is a function of released values.
    private = True
    public = False

    def make(self, plan: PrivacyPlan, **arguments: Any) -> Any:
        """Returns the optimizer (with seed=1) with learning rate 0.1."""
        raise NotImplementedError

    def reference(self, shapes: Sequence[Any], **arguments: Any) -> Any:
        """Returns the NumPy transcription with the same arguments."""
        raise NotImplementedError

    # ---- helpers ----------------------------------------------------------

    def bench(self, plan: PrivacyPlan | None = None, **kwargs: Any) -> Bench:
        optimizer = self.make(plan or plan_of())
        return Bench(optimizer, replay.parameters(SHAPES), **kwargs)

    def stream(self, **changes: Any) -> Any:
        given = {"steps": STEPS, "examples": 7, "padding": 2, "seed": 3}
        return replay.gradient_stream(SHAPES, **{**given, **changes})

    def noise(self, bench: Bench, steps: int = STEPS, seed: int = 5) -> Any:
        streams = bench.optimizer.num_releases
        return noise_rows.replay(
            np.eye(steps), SHAPES, streams=streams, seed=seed
        )

    def public_gradient(self, step: int) -> Any:
        if not self.public:
            return None
        rng = np.random.default_rng(100 + step)
        return [
            (rng.standard_normal(s) * 0.05).astype(np.float32) for s in SHAPES
        ]

    def moved(self, steps: int = 3, plan: PrivacyPlan | None = None) -> Bench:
        """A bench whose state has moved."""
        bench = self.bench(plan)
        rows = self.noise(bench)
        for t, (batch, row) in enumerate(
            zip(self.stream(), rows, strict=False)
        ):
            if t == steps:
                break
            bench.step(*batch, row, self.public_gradient(t))
        if self.public:
            bench.optimizer._public = {
                i: tf.constant(h)
                for i, h in enumerate(self.public_gradient(steps))
            }
        return bench

    # ---- the algorithm ----------------------------------------------------

    @pytest.mark.parametrize("resume_at", [None, 6])
    @pytest.mark.parametrize("adjacency", ["zero_out", "replace"])
    def test_follows_the_numpy_reference(
        self, resume_at: int | None, adjacency: str
    ) -> None:
        plan = plan_of(adjacency=adjacency)
        worst = self.deviation(self.bench(plan), resume_at=resume_at)
        assert worst < self.tolerance, worst

    def deviation(
        self,
        bench: Bench,
        *,
        resume_at: int | None = None,
        rows: Any = None,
        row_norms: Any = None,
    ) -> float:
        """Largest |Δθ| to the NumPy reference over a run, relative to |θ|.

        Args:
            bench: The optimizer, fresh.
            resume_at: Step before which it is exchanged for a new one.
            rows: noise[t][stream][variable]; None is independent noise.
            row_norms: r_t that the reference is told; None is 1.
        """
        plan = bench.optimizer.plan
        rows = self.noise(bench) if rows is None else rows
        reference = self.reference(
            SHAPES,
            l2_norm_clip=bench.optimizer.l2_norm_clip,
            noise_multiplier=SIGMA,
            batch_size=B,
            sensitivity_factor=plan.sensitivity_factor,
            learning_rate=0.1,
            row_norms=row_norms,
        )
        params = [np.asarray(p, np.float64) for p in bench.parameters()]
        worst = 0.0
        for t, (batch, row) in enumerate(zip(self.stream(), rows, strict=True)):
            if t == resume_at:
                bench = self._resumed(bench, plan)
            public = self.public_gradient(t)
            extra = () if public is None else (public,)
            # float64 sees the noise rows as float32 does.
            rounded = [[np.float64(np.float32(p)) for p in r] for r in row]
            used = rounded[: reference.streams]
            params = reference.step(params, *batch, used, *extra)
            got = bench.step(*batch, rounded, public)
            scale = np.max(np.abs(flat(params)))
            worst = max(worst, np.max(np.abs(flat(got) - flat(params))) / scale)
        return float(worst)

    def _resumed(self, bench: Bench, plan: PrivacyPlan) -> Bench:
        """A new optimizer and new variables that take over all state."""
        fresh = Bench(self.make(plan), bench.parameters())
        old, new = bench.optimizer.variables, fresh.optimizer.variables
        for source, target in zip(old, new, strict=True):
            target.assign(source)
        return fresh

    # ---- sensitivity ------------------------------------------------------

    @pytest.mark.parametrize("adjacency", ADJACENCIES)
    def test_one_example_moves_the_releases_by_no_more_than_is_charged(
        self, adjacency: str
    ) -> None:
        bench = self.moved(plan=plan_of(adjacency=adjacency))
        # Fewer and more than B examples; the first ones are no ordinary ones.
        few = self.worst_ratio(bench, 3, [], times=1e4)
        assert few <= 1 + 1e-5
        # Where all are clipped, the noise is not far larger than it must be.
        assert few >= 0.4
        odd = [1e30, 1e18, 1e-20, np.nan, np.inf, 0.0]
        assert self.worst_ratio(bench, 2 * B, odd) <= 1 + 1e-5

    def worst_ratio(
        self,
        bench: Bench,
        examples: int,
        odd: Sequence[float],
        times: float = 1.0,
    ) -> float:
        """Largest `distance` of a batch's releases to those of a neighbour."""
        (batch,) = self.stream(steps=1, examples=examples, padding=0, seed=11)
        grads = [np.float32(times) * g for g in batch.per_example]
        for place, value in enumerate(odd):
            for g in grads:
                g[place] = value
        every, _, _ = bench.releases(grads, np.ones(examples, bool))
        worst = 0.0
        for neighbour in neighbours(grads, bench.optimizer.plan.adjacency):
            other, _, _ = bench.releases(*neighbour)
            moved = distance(every, other)
            assert np.isfinite(moved)
            worst = max(worst, moved)
        return worst

    # ---- state ------------------------------------------------------------

    def test_state_never_holds_raw_data(self) -> None:
        assert self.raw_data_distance() < 1e-4

    def raw_data_distance(self) -> float:
        """Distance of states when only data differ, and not what is released.

        Two runs: other data, and noise chosen such that the noisy releases
        are equal. Everything that outlives the steps must then be equal.
        """
        one, two = self.bench(), self.bench()
        pairs = zip(self.stream(seed=3), self.stream(seed=4), strict=True)
        for t, ((first, second), row) in enumerate(
            zip(pairs, self.noise(one), strict=True)
        ):
            public = self.public_gradient(t)
            if public is not None:
                for bench in (one, two):
                    bench.optimizer._public = {
                        i: tf.constant(h) for i, h in enumerate(public)
                    }
            raw_one, _, _ = one.releases(*first)
            raw_two, _, _ = two.releases(*second)
            other = []
            for k, (a, b) in enumerate(zip(raw_one, raw_two, strict=True)):
                if a.sensitivity is None:
                    other.append(row[k])
                    continue
                stddev = SIGMA * float(a.sensitivity)
                other.append(
                    [
                        np.asarray(row[k][i], np.float64)
                        + (
                            np.float64(a.values[i].numpy())
                            - np.float64(b.values[i].numpy())
                        )
                        / stddev
                        for i in range(len(SHAPES))
                    ]
                )
            one.step(*first, row, public)
            two.step(*second, other, public)
        return max(
            float(np.max(np.abs(a - b)) / (1 + np.max(np.abs(a))))
            for a, b in zip(one.state(), two.state(), strict=True)
        )

    def test_permutation_and_padding_change_nothing(self) -> None:
        one, two = self.bench(), self.bench()
        for t, (batch, row) in enumerate(
            zip(self.stream(), self.noise(one), strict=True)
        ):
            public = self.public_gradient(t)
            one.step(*batch, row, public)
            order = np.random.default_rng(t).permutation(len(batch.mask))
            grads = [g[order] for g in batch.per_example]
            junk = [
                np.concatenate([g, np.full((3, *g.shape[1:]), 7e4, "f")])
                for g in grads
            ]
            mask = np.concatenate([batch.mask[order], np.zeros(3, bool)])
            two.step(junk, mask, row, public)
        np.testing.assert_allclose(
            flat(two.parameters()), flat(one.parameters()), atol=2e-4
        )

    def test_noise_step_advances_by_one_also_for_an_empty_batch(self) -> None:
        bench = self.bench()
        (batch,) = self.stream(steps=1)
        row = next(iter(self.noise(bench)))
        before = flat(bench.parameters())
        bench.step(
            batch.per_example,
            np.zeros_like(batch.mask),
            row,
            self.public_gradient(0),
        )
        assert bench.optimizer.noise_step == 1
        assert int(bench.optimizer.iterations) == 1
        assert np.all(np.isfinite(flat(bench.parameters())))
        assert np.any(flat(bench.parameters()) != before)

    @pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
    def test_low_precision_variables_stay_finite(self, dtype: str) -> None:
        bench = self.bench(dtype=dtype)
        for t, (batch, row) in enumerate(
            zip(self.stream(steps=3), self.noise(bench), strict=False)
        ):
            bench.step(*batch, row, self.public_gradient(t))
        assert np.all(
            np.isfinite(np.asarray(flat(bench.parameters()), np.float64))
        )

    # ---- Keras ------------------------------------------------------------

    def test_config_round_trip(self) -> None:
        optimizer = self.make(plan_of())
        config = keras.optimizers.serialize(optimizer)
        again = keras.optimizers.deserialize(config)
        assert type(again) is type(optimizer)
        one, two = optimizer.get_config(), again.get_config()
        assert one == two
        assert "seed" not in str(sorted(one))

    def test_every_way_in_refuses_raw_gradients(self) -> None:
        bench = self.bench()
        optimizer = bench.optimizer
        grads = [tf.ones(s) for s in SHAPES]
        before = flat(bench.parameters())
        entries = [
            lambda: optimizer.apply(grads, bench.variables),
            lambda: optimizer.apply(grads),
            lambda: optimizer.apply_gradients(
                zip(grads, bench.variables, strict=True)
            ),
            lambda: optimizer.update_step(grads[0], bench.variables[0], 0.1),
            lambda: optimizer.stateless_apply(
                optimizer.variables, grads, bench.variables
            ),
            lambda: optimizer._backend_apply_gradients(grads, bench.variables),
            lambda: optimizer._backend_update_step(grads, bench.variables, 0.1),
        ]
        for entry in entries:
            with pytest.raises(RuntimeError, match="privatize"):
                entry()
        np.testing.assert_array_equal(flat(bench.parameters()), before)

    @pytest.mark.parametrize(
        "arguments",
        [
            {"weight_decay": 0.01},
            {"use_ema": True, "ema_momentum": 0.5},
            {"name": "mine"},
        ],
    )
    def test_accepts_what_is_post_processing(self, arguments: Any) -> None:
        optimizer = self.make(plan_of(), **arguments)
        bench = Bench(optimizer, replay.parameters(SHAPES))
        (batch,) = self.stream(steps=1)
        bench.step(
            *batch, next(iter(self.noise(bench))), self.public_gradient(0)
        )
        assert np.all(np.isfinite(flat(bench.parameters())))

    @pytest.mark.parametrize(
        "arguments",
        [
            {"clipnorm": 1.0},
            {"clipvalue": 1.0},
            {"global_clipnorm": 1.0},
            {"gradient_accumulation_steps": 2},
            {"loss_scale_factor": 2.0},
        ],
    )
    def test_refuses_what_would_break_the_guarantee(
        self, arguments: Any
    ) -> None:
        with pytest.raises(ValueError, match=next(iter(arguments))):
            self.make(plan_of(), **arguments)

    @pytest.mark.parametrize("value", [0.0, -1.0, np.nan, np.inf, None, "x"])
    def test_refuses_a_bad_clip_norm(self, value: Any) -> None:
        with pytest.raises((ValueError, TypeError), match="l2_norm_clip"):
            self.make(plan_of(), l2_norm_clip=value)

    def fitted(self, **compile_arguments: Any) -> Any:
        """A tiny model after two updates with replayed noise."""
        keras.utils.set_random_seed(1)
        model = keras.Sequential(
            [
                keras.Input((4,)),
                keras.layers.Dense(3, activation="tanh"),
                keras.layers.Dense(3),
            ]
        )
        model = privatize(model)
        optimizer = self.make(plan_of())
        optimizer._keys = _Table()
        model.compile(optimizer, LOSS, **compile_arguments)
        rng = np.random.default_rng(0)
        x = rng.standard_normal((2 * B, 4)).astype("float32")
        y = rng.integers(0, 3, 2 * B)
        rows = tf.data.Dataset.from_tensor_slices((x, y))
        model.fit(rows.batch(B, drop_remainder=True), verbose=0)
        return model

    @pytest.mark.xla
    def test_eager_graph_and_xla_agree_with_replayed_noise(self) -> None:
        graph = flat(self.fitted().get_weights())
        eager = flat(self.fitted(run_eagerly=True).get_weights())
        xla = flat(self.fitted(jit_compile=True).get_weights())
        np.testing.assert_allclose(eager, graph, atol=2e-5)
        np.testing.assert_allclose(xla, graph, atol=2e-5)

    @pytest.mark.filterwarnings("ignore:SAMPLING NOT VERIFIED")
    def test_saves_and_loads_with_a_model(self, tmp_path: Any) -> None:
        model = self.fitted()
        expected = plan_of().epsilon(2) if self.private else np.inf
        assert model.epsilon() == expected
        assert model.optimizer.epsilon() == expected
        path = str(tmp_path / "model.keras")
        model.save(path)
        loaded = keras.models.load_model(path)
        assert type(loaded.optimizer) is type(model.optimizer)
        for a, b in zip(
            model.optimizer.variables, loaded.optimizer.variables, strict=True
        ):
            np.testing.assert_array_equal(a.numpy(), b.numpy())
        assert loaded.optimizer.ledger.updates == 2
        with pytest.raises(RuntimeError, match="privatize"):
            loaded.fit(np.ones((4, 4)), np.ones(4), verbose=0)


class _Table:
    """Keys whose noise is the same in eager, graph and XLA."""

    seed = None

    def __init__(self) -> None:
        self.step = tf.Variable(0, dtype=tf.int64, trainable=False)

    def renew_after_fork(self) -> None:
        pass

    def normal(self, step: Any, variable: int, stream: int, shape: Any) -> Any:
        size = int(np.prod(shape))
        rng = np.random.default_rng([variable, stream])
        table = tf.constant(rng.standard_normal((8, size)), tf.float32)
        return tf.reshape(table[tf.cast(step, tf.int32)], shape)
