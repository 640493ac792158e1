"""Who takes part in which update.

Statistical tests have fixed seeds, so they either always pass or always fail;
the odds given are those with which a right sampler would have been unlucky.
"""

import dataclasses
import json

import numpy as np
import pytest
from scipy import stats

from tests.banded_noise import Banded
from tf_dpadaptive.data.sampler import Sampler
from tf_dpadaptive.plan import PrivacyPlan


def plan(sampling="poisson", batch=3, examples=10, **changes):
    return PrivacyPlan(
        1.0, batch, examples, num_steps=100, sampling=sampling, **changes
    )


def cyclic(parts=4, batch=5, examples=40, **changes):
    return plan(
        "cyclic_poisson", batch, examples, noise=Banded(parts), **changes
    )


def taken(sampler, steps):
    return [rows.tolist() for rows in sampler.updates(steps)]


def matrix(sampler, steps):
    """Who (columns) took part in which update (rows): 0 or 1."""
    table = np.zeros([steps, sampler.plan.num_examples], int)
    for step, rows in enumerate(sampler.updates(steps)):
        table[step, rows] = 1
    return table


class TestPoisson:
    def test_sizes_are_binomial(self):
        # Chi-square at p = 1e-4: false alarm 1 in 10,000.
        sizes = matrix(Sampler(plan(batch=3), seed=1), 5000).sum(1)
        expected = 5000 * stats.binom.pmf(np.arange(8), 10, 0.3)
        observed = np.bincount(sizes, minlength=11)
        observed = np.append(observed[:7], observed[7:].sum())
        expected = np.append(expected[:7], 5000 - expected[:7].sum())
        assert stats.chisquare(observed, expected).pvalue > 1e-4

    def test_sizes_of_large_data_are_binomial(self):
        # The path of large N: mean and variance within 5 standard errors,
        # false alarm below 1 in 10^6.
        sampler = Sampler(plan(batch=256, examples=60_000), seed=2)
        sizes = np.array([len(rows) for rows in sampler.updates(4000)])
        variance = 256 * (1 - 256 / 60_000)
        assert abs(sizes.mean() - 256) < 5 * np.sqrt(variance / 4000)
        assert abs(sizes.var() / variance - 1) < 5 * np.sqrt(2 / 4000)

    def test_examples_are_included_independently(self):
        # 10 single and 45 joint frequencies, and 10 of neighbouring steps,
        # each within 5 standard errors: false alarm below 1 in 10^4.
        steps, q = 20_000, 0.3
        table = matrix(Sampler(plan(), seed=3), steps)

        def close(frequency, chance):
            error = np.sqrt(chance * (1 - chance) / steps)
            return np.all(np.abs(frequency - chance) < 5 * error)

        assert close(table.mean(0), q)
        joint = table.T @ table / steps
        assert close(joint[~np.eye(10, dtype=bool)], q**2)
        assert close((table[1:] * table[:-1]).mean(0), q**2)

    def test_rejects_a_fixed_batch_size(self):
        # The same statistics would notice sampling without replacement.
        rng = np.random.default_rng(0)
        sizes = [len(rng.choice(10, 3, replace=False)) for _ in range(5000)]
        observed = np.bincount(sizes, minlength=8)[:8]
        expected = 5000 * stats.binom.pmf(np.arange(8), 10, 0.3)
        expected *= observed.sum() / expected.sum()
        assert stats.chisquare(observed, expected).pvalue < 1e-10

    def test_overflow_drops_uniformly(self, monkeypatch):
        # 20 frequencies within 5 standard errors: false alarm 1 in 10^5.
        sampler = Sampler(plan(batch=10, examples=20), seed=4)
        monkeypatch.setattr(
            "tf_dpadaptive.accounting.overflow.max_batch_size", lambda _: 6
        )
        table = matrix(sampler, 5000)
        assert table.sum(1).max() == 6
        chance = table.sum() / table.size
        error = np.sqrt(chance * (1 - chance) / 5000)
        assert np.all(np.abs(table.mean(0) - chance) < 5 * error)

    def test_empty_batches_happen(self):
        sampler = Sampler(plan(batch=1, examples=10), seed=0)
        assert [] in taken(sampler, 30)

    def test_whole_data_is_all_of_it(self):
        sampler = Sampler(plan(batch=10, examples=10))
        assert taken(sampler, 3) == [list(range(10))] * 3


class TestSeed:
    def test_the_same_seed_gives_the_same_samples(self):
        one, two = Sampler(plan(), seed=5), Sampler(plan(), seed=5)
        assert taken(one, 20) == taken(two, 20)
        assert taken(Sampler(plan(), seed=6), 20) != taken(
            Sampler(plan(), seed=5), 20
        )

    def test_samples_of_a_seed_depend_on_the_update_alone(self):
        whole = taken(Sampler(plan(), seed=5), 20)
        again = Sampler(plan(), seed=5)
        again.seek(12)
        assert taken(again, 8) == whole[12:]

    def test_without_a_seed_nothing_repeats(self):
        # 20 batches of 10 examples: equal by chance with odds below 1e-50.
        one, two = Sampler(plan()), Sampler(plan())
        assert taken(one, 20) != taken(two, 20)
        one.seek(0)
        first = taken(one, 20)
        assert taken(one, 20) != first

    def test_two_orders_differ(self):
        # 40! orders.
        shuffled = plan("shuffled", 40, 40)
        a = Sampler(shuffled)._ordered()
        b = Sampler(shuffled)._ordered()
        assert not np.array_equal(a, b)

    @pytest.mark.parametrize("seed", [1.5, "1", True])
    def test_a_seed_is_a_whole_number(self, seed):
        with pytest.raises(TypeError, match="seed"):
            Sampler(plan(), seed=seed)

    def test_order_of_a_seed_never_changes(self):
        # Over versions of NumPy: a resumed run must find its order again.
        order = Sampler(plan("shuffled"), seed=7)._ordered()
        assert order.tolist() == [1, 0, 6, 5, 9, 4, 8, 7, 2, 3]


class TestFixedOrder:
    @pytest.mark.parametrize("sampling", ["shuffled", "in_order"])
    def test_every_example_comes_once_a_pass_at_the_same_place(self, sampling):
        table = matrix(Sampler(plan(sampling)), 12)  # 3 passes of 4
        assert np.array_equal(table[:4].sum(0), np.ones(10))
        assert np.array_equal(table[:4], table[4:8])
        assert np.array_equal(table[:4], table[8:])
        assert table.sum(1).tolist() == [3, 3, 3, 1] * 3

    def test_in_order_is_the_order_of_the_data(self):
        assert taken(Sampler(plan("in_order")), 4) == [
            [0, 1, 2],
            [3, 4, 5],
            [6, 7, 8],
            [9],
        ]

    def test_goes_on_over_passes_of_any_length(self):
        whole = taken(Sampler(plan("shuffled"), seed=1), 12)
        sampler = Sampler(plan("shuffled"), seed=1)
        parts = taken(sampler, 3) + taken(sampler, 1) + taken(sampler, 8)
        assert parts == whole

    def test_training_leads_when_it_has_sought(self):
        """Iterators that run ahead or are dropped do not move the position."""
        sampler = Sampler(plan("in_order"))
        sampler.seek(0)
        next(sampler.updates(4))  # Keras looks at the first batch
        ahead = sampler.updates(4)
        next(ahead), next(ahead)  # trained on, and prefetched
        sampler.seek(1)
        next(ahead)
        assert sampler.position == 1
        assert taken(sampler, 1) == [[3, 4, 5]]

    @pytest.mark.parametrize("position", [-1, 0.5])
    def test_position_is_a_count(self, position):
        with pytest.raises(ValueError, match="position"):
            Sampler(plan()).seek(position)


class TestCyclic:
    def test_parts_are_fixed_equal_and_take_turns(self):
        sampler = Sampler(cyclic(), seed=2)
        table = matrix(sampler, 4000)
        turns = np.stack([table[i::4].max(0) for i in range(4)])
        assert np.array_equal(turns.sum(0), np.ones(40))
        assert np.array_equal(turns.sum(1), np.full(4, 10))
        # Chance q = 5 · 4 / 40 in its turn: 40 frequencies within 5 standard
        # errors, false alarm below 1 in 10^4.
        chance = np.array([table[i::4].mean(0) for i in range(4)]).max(0)
        assert np.all(np.abs(chance - 0.5) < 5 * np.sqrt(0.25 / 1000))

    def test_phase_goes_on_over_passes(self):
        sampler = Sampler(cyclic(), seed=2)
        parts = sampler._members()
        for step, rows in enumerate(taken(sampler, 3) + taken(sampler, 6)):
            assert set(rows) <= set(parts[step % 4])

    def test_parts_of_add_or_remove_are_drawn_for_each_example(self):
        """One example more leaves the parts of the others as they are."""
        small = Sampler(cyclic(adjacency="add_or_remove"), seed=3)
        large = Sampler(cyclic(examples=41, adjacency="add_or_remove"), seed=3)
        for one, two in zip(small._members(), large._members(), strict=True):
            assert set(one) == set(two) - {40}

    def test_one_part_is_poisson(self):
        one = Sampler(plan("cyclic_poisson"), seed=5)
        assert one.plan.parts == 1
        assert taken(one, 20) == taken(Sampler(plan(), seed=5), 20)


class TestState:
    @pytest.mark.parametrize("made", [plan("shuffled"), cyclic()])
    @pytest.mark.parametrize("seed", [None, 8])
    def test_a_resumed_run_keeps_order_and_phase(self, made, seed):
        sampler = Sampler(made, seed)
        matrix(sampler, 5)
        state = json.loads(json.dumps(sampler.state()))
        resumed = Sampler(made, seed)
        resumed.load(state)
        assert resumed.position == 5
        assert resumed.run_id == sampler.run_id
        if made.sampling == "shuffled" or seed is not None:
            assert taken(resumed, 7) == taken(sampler, 7)
        else:
            members = zip(resumed._members(), sampler._members(), strict=True)
            assert all(np.array_equal(a, b) for a, b in members)

    def test_a_resumed_poisson_run_draws_fresh_samples(self):
        sampler = Sampler(plan())
        resumed = Sampler(plan())
        resumed.load(sampler.state())
        assert taken(resumed, 20) != taken(sampler, 20)

    @pytest.mark.parametrize(
        "other",
        [
            plan("shuffled", examples=11),
            plan("shuffled", batch=2),
            plan("in_order"),
        ],
    )
    def test_another_order_is_refused_and_nothing_changes(self, other):
        sampler = Sampler(plan("shuffled"), seed=1)
        state = sampler.state()
        with pytest.raises(ValueError, match="another way of sampling"):
            sampler.load(Sampler(other).state())
        assert sampler.state() == state

    def test_noise_may_change_under_one_order(self):
        sampler = Sampler(plan("shuffled"), seed=1)
        louder = dataclasses.replace(plan("shuffled"), noise_multiplier=2.0)
        Sampler(louder).load(sampler.state())
