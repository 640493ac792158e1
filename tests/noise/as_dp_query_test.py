"""Mechanisms as TF-Privacy's queries, and there and back."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.noise.queries import (
    SHAPES,
    SPECS,
    N,
    library,
    needs_tf_privacy,
    tree,
)
from tests.noise.white import run
from tf_dpadaptive import noise
from tf_dpadaptive.noise.keys import SecretKeys

pytestmark = needs_tf_privacy

MECHANISMS = [
    noise.Independent(),
    noise.TreeAggregation(),
    noise.TreeAggregation(regenerate=False),
    noise.BandedMF(4),
    noise.BandedInverse(3),
    noise.BandedInverse(3, regenerate=False),
    noise.SquareRoot(),
    noise.BLT(2),
    noise.DenseMF(),
]


class AsDPQueryTest:
    @staticmethod
    def query(mechanism, clip=2.0, sigma=1.5, num_steps=N, **kwargs):
        return mechanism.as_dp_query(
            clip, sigma, SPECS, num_steps=num_steps, **kwargs
        )

    @staticmethod
    def results(query, state, steps, get=None):
        get = get or query.get_noised_result
        zeros = query.initial_sample_state()
        found = []
        for _ in range(steps):
            result, state, _ = get(zeros, state)
            found.append(np.concatenate([x.numpy().ravel() for x in result]))
        return np.array(found), state

    @pytest.mark.parametrize("mechanism", MECHANISMS, ids=repr)
    def test_results_are_the_noise_of_the_stream(self, mechanism):
        query = self.query(mechanism, seed=4)
        got, _ = self.results(query, query.initial_global_state(), N)
        stream = mechanism.stream(SecretKeys(seed=4), SHAPES, num_steps=N)
        noise = run(stream, range(N))
        want = 3.0 * np.concatenate([x.reshape(N, -1) for x in noise], axis=1)
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)

    @pytest.mark.parametrize("mechanism", MECHANISMS, ids=repr)
    def test_state_is_functional(self, mechanism):
        query = self.query(mechanism)
        first = query.initial_global_state()
        early, middle = self.results(query, first, 5)
        late, _ = self.results(query, middle, 4)
        # The same states again, after the query has moved on.
        again, _ = self.results(query, middle, 4)
        np.testing.assert_array_equal(again, late)
        np.testing.assert_array_equal(self.results(query, first, 5)[0], early)
        graph = tf.function(
            lambda sums, state: query.get_noised_result(sums, state)[:2],
            autograph=False,
        )
        compiled, _ = self.results(
            query, first, 5, lambda sums, state: (*graph(sums, state), None)
        )
        np.testing.assert_allclose(compiled, early, rtol=1e-4, atol=1e-5)
        # A state fits another query of the same kind: nothing is kept aside.
        other = self.query(mechanism)
        np.testing.assert_array_equal(self.results(other, middle, 4)[0], late)

    def test_it_is_one_of_tf_privacy(self):
        query = self.query(noise.BLT(2))
        assert isinstance(query, library("dp_query").SumAggregationDPQuery)

    def test_secrets_differ_and_can_be_renewed(self):
        query = self.query(noise.BLT(2))
        start = query.initial_global_state()
        one, middle = self.results(query, start, 3)
        other, _ = self.results(query, query.initial_global_state(), 3)
        assert not np.any(one == other)
        late, _ = self.results(query, middle, 3)
        renewed, _ = self.results(query, query.renewed(middle), 3)
        assert not np.any(late == renewed)

    def test_records_are_clipped_together(self):
        query = self.query(noise.Independent(), sigma=0.0)
        params = query.derive_sample_params(query.initial_global_state())
        record = [
            tf.fill([3, 2], 1.0),
            tf.constant(3.0),
            tf.fill([4], 1.0),
        ]  # of norm √19
        clipped = query.preprocess_record(params, record)
        for x, y in zip(clipped, record, strict=True):
            np.testing.assert_allclose(x, y * 2.0 / np.sqrt(19), rtol=1e-6)
        small = [0.1 * x for x in record]
        for x, y in zip(
            query.preprocess_record(params, small), small, strict=True
        ):
            np.testing.assert_array_equal(x, y)
        for bad in (np.nan, np.inf):
            broken = [record[0], tf.constant(bad), record[2]]
            for x in query.preprocess_record(params, broken):
                np.testing.assert_array_equal(x, 0.0)
        state = query.initial_sample_state()
        state = query.accumulate_record(params, state, record)
        state = query.accumulate_record(params, state, small)
        result, *_ = query.get_noised_result(
            state, query.initial_global_state()
        )
        np.testing.assert_allclose(result[1], 6 / np.sqrt(19) + 0.3, rtol=1e-6)

    def test_low_precision_is_clipped_in_float32(self):
        specs = [tf.TensorSpec([50], tf.bfloat16)]
        query = noise.Independent().as_dp_query(1.0, 0.0, specs)
        params = query.derive_sample_params(query.initial_global_state())
        rng = np.random.default_rng(0)
        for _ in range(20):
            record = [tf.constant(rng.standard_normal(50), tf.bfloat16)]
            state = query.accumulate_record(
                params, query.initial_sample_state(), record
            )
            norm = np.linalg.norm(state[0].numpy().astype(float))
            assert 0.99 < norm <= 1 + 1e-6
            result, *_ = query.get_noised_result(
                state, query.initial_global_state()
            )
            assert result[0].dtype == tf.bfloat16

    def test_events(self):
        import dp_accounting

        def event(mechanism, sigma):
            query = self.query(mechanism, sigma=sigma)
            sums = query.initial_sample_state()
            return query.get_noised_result(sums, query.initial_global_state())[
                2
            ]

        assert event(noise.Independent(), 1.5) == (
            dp_accounting.GaussianDpEvent(1.5)
        )
        assert isinstance(
            event(noise.BLT(2), 1.5), dp_accounting.UnsupportedDpEvent
        )
        assert isinstance(
            event(noise.Independent(), 0.0), dp_accounting.NonPrivateDpEvent
        )

    def test_refusals(self):
        with pytest.raises(ValueError, match="num_steps"):
            self.query(noise.BLT(2), num_steps=None)
        with pytest.raises(ValueError, match="l2_norm_clip"):
            self.query(noise.BLT(2), clip=0.0)
        with pytest.raises(ValueError, match="l2_norm_clip.*1e-10"):
            self.query(noise.BLT(2), clip=1e-21)
        with pytest.raises(ValueError, match="noise_multiplier"):
            self.query(noise.BLT(2), sigma=-1.0)
        query = self.query(noise.BLT(2), num_steps=3)
        _, last = self.results(query, query.initial_global_state(), 3)
        with pytest.raises(ValueError, match="step=3"):
            query.get_noised_result(query.initial_sample_state(), last)
        with pytest.raises(RuntimeError, match="secret"):
            tf.function(query.initial_global_state, autograph=False)()


class RoundTripTest:
    @pytest.mark.parametrize("mechanism", MECHANISMS, ids=repr)
    def test_of_a_mechanism(self, mechanism):
        query = mechanism.as_dp_query(2.0, 1.5, SPECS, num_steps=N)
        back = noise.FromDPQuery(query)
        assert back.correlated == mechanism.correlated
        assert back.bands == mechanism.bands
        keys = SecretKeys(seed=7)
        for x, y in zip(
            run(back.stream(keys, SHAPES, num_steps=N), range(N)),
            run(mechanism.stream(keys, SHAPES, num_steps=N), range(N)),
            strict=True,
        ):
            np.testing.assert_array_equal(x, y)
        config = keras.saving.serialize_keras_object(back)
        assert keras.saving.deserialize_keras_object(config) == back

    def test_of_a_query(self):
        mechanism = noise.FromDPQuery(tree())
        query = mechanism.as_dp_query(2.0, 1.5, SPECS, num_steps=N, seed=1)
        got, _ = AsDPQueryTest.results(query, query.initial_global_state(), N)
        stream = mechanism.stream(SecretKeys(seed=1), SHAPES, num_steps=N)
        want = np.concatenate(
            [x.reshape(N, -1) for x in run(stream, range(N))], axis=1
        )
        np.testing.assert_allclose(got, 3.0 * want, rtol=1e-4, atol=1e-5)
