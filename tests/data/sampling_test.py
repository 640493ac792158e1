"""The datasets of `plan.batches`: elements, passes, runs, origin, Keras."""

import dataclasses
import gc

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.banded_noise import Banded
from tf_dpadaptive.batch import Batch
from tf_dpadaptive.data import sampling
from tf_dpadaptive.data.sampling import Sampler, batches, origin
from tf_dpadaptive.plan import PrivacyPlan

X = np.arange(10)


def plan(kind="poisson", batch=3, examples=10, **changes):
    return PrivacyPlan(
        1.0, batch, examples, num_steps=100, sampling=kind, **changes
    )


def members(batch):
    """The examples of a batch, and a check that the rest is padding."""
    padding = batch.padding.numpy()
    count = int((~padding).sum())
    assert not padding[:count].any()
    assert not batch.x.numpy()[count:].any()
    return batch.x.numpy()[:count].tolist()


def walk(dataset):
    return [members(batch) for batch in dataset]


class TestElements:
    @pytest.mark.parametrize(
        ("made", "rows"),
        [
            (plan(batch=3), 10),
            (plan("shuffled"), 3),
            (plan("in_order"), 3),
            (plan("cyclic_poisson", 2, 10, noise=Banded(5)), 2),
        ],
    )
    def test_fixed_shape_and_known_cardinality(self, made, rows):
        dataset = batches(made, X, X, X, steps=7)
        assert made.max_batch_size == rows
        assert dataset.cardinality() == 7
        elements = list(dataset)
        assert len(elements) == 7
        for batch in [dataset.element_spec, *elements]:
            assert isinstance(batch, Batch)
            assert {tuple(part.shape) for part in batch} == {(rows,)}

    def test_a_pass_is_an_epoch(self):
        assert batches(plan(), X).cardinality() == 4

    def test_absent_parts_are_none(self):
        dataset = batches(plan(), X)
        assert next(iter(dataset)).y is None
        assert next(iter(dataset)).sample_weight is None

    def test_rows_stay_together(self):
        for batch in batches(plan(), X, {"double": 2 * X}, 3.0 * X, steps=20):
            x = batch.x.numpy()
            assert np.array_equal(batch.y["double"].numpy(), 2 * x)
            assert np.array_equal(batch.sample_weight.numpy(), 3.0 * x)

    def test_empty_batches_are_padding_alone(self):
        one = plan(batch=1)
        sizes = [len(m) for m in walk(batches(one, X, steps=40, seed=1))]
        assert 0 in sizes

    def test_augmentation_is_applied(self):
        dataset = batches(plan("in_order"), X, map_fn=lambda x: x + 100)
        assert members(next(iter(dataset))) == [100, 101, 102]
        assert dataset.cardinality() == 4

    def test_other_sizes_are_refused(self):
        with pytest.raises(ValueError, match="num_examples=10"):
            batches(plan(), np.arange(9))
        with pytest.raises(ValueError, match="`y`"):
            batches(plan(), X, np.arange(11))

    @pytest.mark.parametrize("steps", [0, -1, 2.5])
    def test_steps_are_a_count(self, steps):
        with pytest.raises(ValueError, match="steps"):
            batches(plan(), X, steps=steps)


class TestRandomness:
    def test_a_pass_draws_anew(self):
        # Equal by chance with odds below 1e-30, as in the next test.
        dataset = batches(plan(), X, steps=20)
        assert walk(dataset) != walk(dataset)
        seeded = batches(plan(), X, steps=20, seed=1)
        assert walk(seeded) != walk(seeded)

    def test_a_seed_warns(self):
        with pytest.warns(UserWarning, match="amplification"):
            batches(plan(), X, seed=1)

    def test_seeds_repeat_and_the_operating_system_does_not(self):
        def once(seed):
            return walk(batches(plan(), X, steps=20, seed=seed))

        assert once(1) == once(1)
        assert once(1) != once(2)
        assert once(None) != once(None)


class TestRuns:
    @pytest.mark.parametrize(
        "made",
        [plan("shuffled"), plan("cyclic_poisson", 5, 10, noise=Banded(2))],
    )
    def test_a_run_goes_on_over_passes_and_calls(self, made):
        """Every example's updates over three passes and a second call."""
        dataset = batches(made, X, steps=5)
        steps = walk(dataset) + walk(dataset) + walk(batches(made, X, steps=5))
        for i in X:
            when = [t for t, present in enumerate(steps) if i in present]
            cycle = 4 if made.sampling == "shuffled" else 2
            assert len({t % cycle for t in when}) == 1
            assert len(when) > 1

    def test_an_equal_plan_made_anew_is_a_new_run(self):
        one, two = plan("shuffled", 1), plan("shuffled", 1)
        assert origin(batches(one, X)) is origin(batches(one, X))
        assert origin(batches(one, X)) is not origin(batches(two, X))
        assert origin(batches(one, X)) is not origin(batches(one, X, seed=1))
        assert walk(batches(one, X)) != walk(batches(two, X))  # odds 1/10!

    def test_runs_end_with_their_plan(self):
        made = plan("shuffled")
        batches(made, X)
        key = id(made)
        assert key in sampling._RUNS
        del made
        gc.collect()
        assert key not in sampling._RUNS

    def test_a_resumed_run_goes_on(self):
        made = plan("shuffled", 1)
        dataset = batches(made, X, steps=4)
        first = walk(dataset)
        state = origin(dataset).state()
        again = batches(dataclasses.replace(made), X, steps=6)
        origin(again).load(state)
        rest = walk(again)
        assert sorted(i for (i,) in first + rest) == list(range(10))

    def test_training_leads_the_position(self):
        made = plan("in_order")
        dataset = batches(made, X, steps=4).prefetch(4)
        origin(dataset).seek(0)
        next(iter(dataset))  # looked at and dropped
        iterator = iter(dataset)
        next(iterator)
        origin(dataset).seek(1)
        assert members(next(iter(dataset))) == [3, 4, 5]


class TestOrigin:
    def test_is_known_through_what_changes_nothing(self):
        dataset = batches(plan(), X)
        sampler = origin(dataset)
        assert isinstance(sampler, Sampler)
        assert sampler.plan == plan()
        same = dataset.prefetch(2).with_options(tf.data.Options()).prefetch(1)
        assert origin(same) is sampler
        assert origin(batches(plan(), X, map_fn=lambda x: x)) is not None

    @pytest.mark.parametrize(
        "change",
        [
            lambda d: d.map(lambda batch: batch),
            lambda d: d.repeat(2),
            lambda d: d.shuffle(4),
            lambda d: d.take(2),
            lambda d: d.skip(1),
            lambda d: d.filter(lambda batch: True),
            lambda d: d.unbatch().batch(10),
            lambda d: d.concatenate(d),
            lambda d: d.cache(),
        ],
    )
    def test_is_lost_in_what_might_change_the_sample(self, change):
        changed = change(batches(plan(), X))
        assert origin(changed) is None
        assert origin(changed.prefetch(1)) is None

    @pytest.mark.parametrize("data", [None, X, tf.data.Dataset.range(3), "x"])
    def test_other_data_has_none(self, data):
        assert origin(data) is None


class Counting(keras.Model):
    """Counts examples, to see `Batch`es arrive through Keras' machinery."""

    def __init__(self):
        super().__init__()
        self.seen = self.add_weight(shape=(10,), initializer="zeros")
        self.built = True

    def train_step(self, batch):
        assert isinstance(batch, Batch)
        assert batch.y is None
        assert batch.sample_weight is None
        real = tf.cast(batch.real(), tf.float32)[:, None]
        self.seen.assign_add(tf.reduce_sum(tf.one_hot(batch.x, 10) * real, 0))
        return {"seen": tf.reduce_sum(self.seen)}


class TestKeras:
    @pytest.mark.parametrize("eagerly", [True, False])
    @pytest.mark.parametrize("per_execution", [1, 3])
    def test_batches_arrive_with_their_absent_parts(
        self, eagerly, per_execution
    ):
        model = Counting()
        model.compile(run_eagerly=eagerly, steps_per_execution=per_execution)
        made = plan("shuffled", batch=4)
        model.fit(batches(made, X), epochs=4, shuffle=False, verbose=0)
        # Three updates a pass, of 4, 4 and 2 examples.
        assert model.seen.numpy().tolist() == [4] * 10

    def test_optional_elements(self):
        dataset = batches(plan("in_order"), X)

        @tf.function(autograph=False)
        def total():
            iterator, found = iter(dataset), tf.constant(0, tf.int64)
            for _ in range(6):
                element = iterator.get_next_as_optional()
                found += tf.cond(
                    element.has_value(),
                    lambda e=element: tf.reduce_sum(e.get_value().x),
                    lambda: tf.constant(0, tf.int64),
                )
            return found

        assert total() == 45
