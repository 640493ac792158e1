"""TF-Privacy's queries as mechanisms: their law, secrets and state."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_dpadaptive as dpa
from tests.noise.queries import (
    SHAPES,
    SPECS,
    N,
    gaussian,
    library,
    needs_tf_privacy,
    tree,
)
from tests.noise.white import run
from tests.training import build
from tf_dpadaptive import noise
from tf_dpadaptive.noise.keys import SecretKeys

pytestmark = needs_tf_privacy
TREES = [(False, None), (True, None), (False, 5), (True, 5), (True, 8)]
every_tree = pytest.mark.parametrize(("efficient", "period"), TREES)


class Basis:
    """Each draw is a vector of its own: sums of noise are exact."""

    def normal(self, step, variable, stream, shape):
        place = 16 * tf.cast(step, tf.int64) + tf.cast(variable, tf.int64)
        return tf.one_hot(place, shape[0])


def rows_of(stream, wrap=lambda function: function):
    (rows,) = run(stream, range(N), wrap)
    return rows.astype(np.float64)


class OurTreeIsTheirsTest:
    @every_tree
    def test_their_own_query_has_our_prefix_variances(self, efficient, period):
        # TF-Privacy as it stands, with nothing of ours: its generator alone
        # is exchanged for one that counts.
        size = 8 * N
        query = tree(efficient, period, [tf.TensorSpec([size])])
        inner = query if period is None else query._inner_query
        drawn = []

        def unit():
            drawn.append(1)
            return [tf.one_hot(len(drawn), size)]

        aggregator = inner._tree_aggregator
        aggregator.value_generator = library(
            "tree_aggregation"
        ).StatelessValueGenerator(unit)
        tf.config.run_functions_eagerly(True)
        try:
            state = query.initial_global_state()
            rows = []
            for _ in range(N):
                result, state, _ = query.get_noised_result(
                    [tf.zeros([size])], state
                )
                rows.append(result[0].numpy())
        finally:
            tf.config.run_functions_eagerly(False)
        ours = noise.TreeAggregation(honaker=efficient, restart_every=period)
        variances = np.sum(np.cumsum(rows, axis=0) ** 2, axis=1)
        np.testing.assert_allclose(
            variances,
            ours.prefix_errors_squared(N) / ours.levels(N),
            rtol=1e-6,
        )

    @pytest.mark.parametrize("wrap", [lambda f: f, tf.function])
    @every_tree
    def test_through_the_bridge_all_covariances_are_ours(
        self, efficient, period, wrap
    ):
        mechanism = noise.FromDPQuery(
            tree(efficient, period, [tf.TensorSpec([16 * N])])
        )
        stream = mechanism.stream(Basis(), [(16 * N,)], num_steps=N)
        rows = rows_of(stream, wrap)
        np.testing.assert_allclose(
            mechanism.prefix_errors_squared(N),
            np.sum(np.cumsum(rows, axis=0) ** 2, axis=1),
            rtol=1e-5,
        )
        ours = noise.TreeAggregation(honaker=efficient, restart_every=period)
        inverse = ours.noising_matrix(N)
        np.testing.assert_allclose(
            rows @ rows.T, inverse @ inverse.T, rtol=1e-5, atol=1e-5
        )
        np.testing.assert_allclose(
            mechanism.row_norms_squared(N), np.sum(rows**2, axis=1), rtol=1e-5
        )

    def test_other_noise_would_be_seen(self):
        mechanism = noise.FromDPQuery(
            tree(True, None, [tf.TensorSpec([16 * N])])
        )
        rows = rows_of(mechanism.stream(Basis(), [(16 * N,)], num_steps=N))
        plain = noise.TreeAggregation(honaker=False).noising_matrix(N)
        assert np.max(np.abs(rows @ rows.T - plain @ plain.T)) > 0.1


class FromDPQueryTest:
    @every_tree
    def test_its_law_answers_the_accountant(self, efficient, period):
        ours = noise.TreeAggregation(honaker=efficient, restart_every=period)
        theirs = noise.FromDPQuery(tree(efficient, period))
        assert theirs.correlated
        assert theirs.bands == ours.bands
        for n, b, k in ((N, N, 1), (40, 7, 3), (40, 1, 4)):
            assert theirs.sensitivity(n, b, k) == ours.sensitivity(n, b, k)

        def plan(mechanism):
            return dpa.PrivacyPlan(
                2.0, 5, 50, 40, "shuffled", mechanism, delta=1e-5
            )

        assert plan(theirs).epsilon() == plan(ours).epsilon()

    def test_gaussian_query_is_independent_noise(self):
        mechanism = noise.FromDPQuery(gaussian())
        assert not mechanism.correlated
        assert mechanism.bands == 1
        np.testing.assert_array_equal(
            mechanism.prefix_errors_squared(3), [1.0, 2.0, 3.0]
        )
        keys = SecretKeys(seed=1)
        got = run(mechanism.stream(keys, SHAPES, num_steps=None), range(4))
        want = run(noise.Independent().stream(keys, SHAPES), range(4))
        for one, other in zip(got, want, strict=True):
            np.testing.assert_array_equal(one, other)
        plan = dpa.PrivacyPlan(1.1, 5, 50, noise=mechanism, delta=1e-5)
        same = dpa.PrivacyPlan(1.1, 5, 50, delta=1e-5)
        assert plan.epsilon(9) == same.epsilon(9)

    @pytest.mark.parametrize(
        "make",
        [gaussian, tree, lambda: tree(False, 5)],
        ids=["gaussian", "tree", "restart"],
    )
    def test_noise_comes_from_the_keys(self, make):
        def draw(keys):
            stream = noise.FromDPQuery(make()).stream(keys, SHAPES, num_steps=N)
            return np.concatenate(
                [x.ravel() for x in run(stream, range(6), tf.function)]
            )

        one, again = (draw(SecretKeys(seed=1)) for _ in range(2))
        np.testing.assert_array_equal(one, again)
        others = [draw(SecretKeys()) for _ in range(2)]
        for x, y in ((one, others[0]), (others[0], others[1])):
            assert not np.any(x == y)

    def test_noise_has_unit_gaussian_nodes(self):
        # 10⁵ numbers, within 6 standard errors: false alarm < 1e-8.
        size = 100_000
        mechanism = noise.FromDPQuery(tree(specs=[tf.TensorSpec([size])]))
        stream = mechanism.stream(SecretKeys(seed=2), [(size,)], num_steps=4)
        (rows,) = run(stream, range(4))
        inverse = noise.TreeAggregation().noising_matrix(4)
        wanted = inverse @ inverse.T
        spread = np.sqrt(
            (np.outer(np.diag(wanted), np.diag(wanted)) + wanted**2) / size
        )
        assert np.all(np.abs(rows @ rows.T / size - wanted) < 6 * spread)

    def test_a_run_that_goes_on_draws_the_next_step_from_its_own_secret(self):
        mechanism = noise.FromDPQuery(tree())
        old = SecretKeys()
        first = mechanism.stream(old, SHAPES, num_steps=N)
        run(first, range(6))
        old.step.assign(6)
        kept = [b.numpy() for b in first.buffers]

        def fork():
            keys = SecretKeys()
            keys.load(old.state())
            stream = mechanism.stream(keys, SHAPES, num_steps=N)
            for variable, value in zip(stream.buffers, kept, strict=True):
                variable.assign(value)
            return run(stream, range(6, 9))

        one, other, unbroken = fork(), fork(), run(first, range(6, 9))
        for x, y in ((one, other), (one, unbroken), (other, unbroken)):
            for a, b in zip(x, y, strict=True):
                assert not np.any(a == b)

    def test_a_step_outside_the_run_raises(self):
        stream = noise.FromDPQuery(tree()).stream(
            SecretKeys(), SHAPES, num_steps=N
        )
        with pytest.raises(ValueError, match="step=16"):
            stream.next(tf.constant(N, tf.int64))

    @pytest.mark.parametrize("make", [gaussian, tree, lambda: tree(True, 5)])
    def test_configuration(self, make):
        mechanism = noise.FromDPQuery(make())
        config = keras.saving.serialize_keras_object(mechanism)
        back = keras.saving.deserialize_keras_object(config)
        assert back == mechanism
        assert hash(back) == hash(mechanism)
        assert back != noise.FromDPQuery(tree(False, 3))

    @pytest.mark.parametrize(
        ("make", "why"),
        [
            (lambda: tree(True, 5, warmup=2), "warmup"),
            (lambda: "query", "no query"),
            (lambda: library("no_privacy_query").NoPrivacySumQuery(), "law"),
            (
                lambda: library("tree_aggregation_query").TreeResidualSumQuery(
                    SPECS, lambda: [tf.zeros(s) for s in SHAPES], None, 1.0
                ),
                "Gaussian",
            ),
            (
                lambda: library("restart_query").RestartQuery(
                    tree(),
                    library("restart_query").PeriodicTimeRestartIndicator(1.0),
                ),
                "not known beforehand",
            ),
        ],
        ids=["warmup", "text", "no noise", "other noise", "time"],
    )
    def test_noise_of_unknown_law_is_refused(self, make, why):
        with pytest.raises(ValueError, match=rf"`query` must be.*{why}"):
            noise.FromDPQuery(make())

    def test_records_of_other_shapes_are_refused(self):
        with pytest.raises(ValueError, match="record_specs"):
            noise.FromDPQuery(tree()).stream(
                SecretKeys(), SHAPES[:2], num_steps=N
            )


class RefusalUnderXlaTest:
    @pytest.mark.parametrize("make", [gaussian, tree, lambda: tree(True, 5)])
    def test_compiled_stream(self, make):
        stream = noise.FromDPQuery(make()).stream(
            SecretKeys(), SHAPES, num_steps=N
        )
        draw = tf.function(stream.next, jit_compile=True, autograph=False)
        with pytest.raises(ValueError, match=r"XLA.*jit_compile=False"):
            draw(tf.constant(0, tf.int64))

    def test_compiled_fit_changes_nothing(self):
        model = trained(noise.FromDPQuery(model_tree()), jit_compile=True)
        before = build.state(model)
        with pytest.raises(ValueError, match=r"changes its shape"):
            fit(model, 1)
        assert build.unchanged(model, before)


def model_tree(period=None):
    shapes = [v.shape for v in build.mlp().trainable_variables]
    return tree(True, period, [tf.TensorSpec(shape) for shape in shapes])


def trained(mechanism, seed=None, sigma=1.0, **arguments):
    plan = dpa.PrivacyPlan(
        sigma,
        8,
        len(build.data(32)[0]),
        num_steps=12,
        sampling="shuffled",
        noise=mechanism,
        delta=1e-5,
    )
    arguments.setdefault("run_eagerly", False)
    optimizer = dpa.optimizers.DPAdam(0.05, build.CLIP, plan, seed=seed)
    return build.compiled(build.mlp(), optimizer, **arguments)


def fit(model, updates):
    x, y = build.data(32)
    batches = model.optimizer.plan.batches(x, y, steps=updates, seed=5)
    return model.fit(batches, verbose=0)


class TrainingTest:
    @pytest.mark.parametrize(
        "make",
        [gaussian, model_tree, lambda: model_tree(5)],
        ids=["gaussian", "tree", "restart"],
    )
    def test_a_seeded_run_resumes_bit_for_bit(self, make, tmp_path):
        mechanism = noise.FromDPQuery(make())
        keras.utils.set_random_seed(1)
        unbroken = trained(mechanism, seed=3)
        start = build.values(unbroken)
        fit(unbroken, 5)
        fit(unbroken, 4)
        first = trained(mechanism, seed=3)
        build.assign(first, start)
        fit(first, 5)
        dpa.checkpoint.save(first, tmp_path / "run")
        second = trained(mechanism, seed=3)
        dpa.checkpoint.restore(second, tmp_path / "run")
        fit(second, 4)
        np.testing.assert_array_equal(build.flat(second), build.flat(unbroken))
        assert second.ledger.updates == 9
        assert second.epsilon() == unbroken.epsilon()

    def test_epsilon_is_that_of_our_tree(self):
        model = trained(noise.FromDPQuery(model_tree()))
        fit(model, 4)
        ours = trained(noise.TreeAggregation())
        fit(ours, 4)
        assert model.epsilon() == ours.epsilon()

    def test_more_updates_than_planned_raise(self):
        model = trained(noise.FromDPQuery(model_tree()))
        with pytest.raises(dpa.BudgetExhausted):
            fit(model, 13)

    def test_eager(self):
        model = trained(noise.FromDPQuery(model_tree()), run_eagerly=True)
        fit(model, 2)
        assert np.all(np.isfinite(build.flat(model)))
