"""The plan: what it accepts, what it derives, what it answers."""

import copy
import dataclasses
import json
import math
import warnings

import keras
import numpy as np
import pytest

import tf_dpadaptive as dpa
from tests.banded_noise import Banded, Full
from tf_dpadaptive.noise.independent import Independent
from tf_dpadaptive.plan import PrivacyPlan

MNIST = {
    "noise_multiplier": 1.1,
    "expected_batch_size": 250,
    "num_examples": 60_000,
    "num_steps": 60 * 240,
    "delta": 1e-5,
}


def plan(**changes):
    return PrivacyPlan(**{**MNIST, **changes})


class TestArguments:
    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("noise_multiplier", -1.0),
            ("noise_multiplier", math.nan),
            ("noise_multiplier", math.inf),
            ("expected_batch_size", 0),
            ("expected_batch_size", -8),
            ("expected_batch_size", 2.5),
            ("expected_batch_size", math.inf),
            ("expected_batch_size", 60_001),
            ("num_examples", 0),
            ("num_examples", 99.5),
            ("num_steps", 0),
            ("num_steps", 1.5),
            ("delta", 0.0),
            ("delta", 1.0),
            ("delta", -1e-5),
            ("delta", math.nan),
            ("sampling", "Poisson"),
            ("adjacency", "add-or-remove"),
        ],
    )
    def test_out_of_range_is_refused_by_name(self, name, value):
        with pytest.raises(ValueError, match=f"{name}.*Received.*{name}="):
            plan(**{name: value})

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("noise_multiplier", None),
            ("noise", "independent"),
            ("noise", Independent),
        ],
    )
    def test_wrong_kind_is_refused(self, name, value):
        with pytest.raises(TypeError, match=name):
            plan(**{name: value})

    def test_correlated_noise_without_steps_is_refused(self):
        with pytest.raises(ValueError, match="num_steps"):
            plan(noise=Banded(4), num_steps=None)

    def test_numbers_become_python_numbers(self):
        made = plan(
            noise_multiplier=np.float32(1.5),
            expected_batch_size=250.0,
            num_steps=np.int64(100),
        )
        assert type(made.noise_multiplier) is float
        assert type(made.expected_batch_size) is int
        assert type(made.num_steps) is int
        json.dumps(made.get_config())

    def test_is_frozen(self):
        with pytest.raises(dataclasses.FrozenInstanceError):
            plan().noise_multiplier = 0.0


class TestDerived:
    def test_steps_per_epoch_rounds_up(self):
        assert plan(num_examples=60_001).steps_per_epoch == 241
        assert plan().sampling_probability == 250 / 60_000

    @pytest.mark.parametrize(
        "name", ["steps_per_epoch", "sampling_probability"]
    )
    def test_without_examples_says_what_is_missing(self, name):
        with pytest.raises(ValueError, match="num_examples"):
            getattr(plan(num_examples=None), name)

    def test_max_batch_size_exists_without_examples(self):
        unknown = plan(num_examples=None, delta=None)
        known = plan(delta=None)
        assert unknown.max_batch_size >= known.max_batch_size

    @pytest.mark.parametrize("sampling", ["shuffled", "in_order"])
    def test_fixed_orders_have_batches_of_b(self, sampling):
        assert plan(sampling=sampling).max_batch_size == 250

    @pytest.mark.parametrize(
        ("adjacency", "factor"),
        [("zero_out", 1), ("add_or_remove", 1), ("replace", 2)],
    )
    def test_sensitivity_factor(self, adjacency, factor):
        assert plan(adjacency=adjacency).sensitivity_factor == factor

    def test_parts_are_the_bands(self):
        cyclic = plan(sampling="cyclic_poisson", noise=Banded(8))
        assert cyclic.parts == 8
        assert plan(noise=Banded(8)).parts == 1
        with pytest.raises(ValueError, match="bands"):
            _ = plan(sampling="cyclic_poisson", noise=Full()).parts


class TestSerialisation:
    @pytest.mark.parametrize(
        "made",
        [
            plan(),
            plan(sampling="cyclic_poisson", noise=Banded(8)),
            PrivacyPlan(0, 1),
        ],
    )
    def test_round_trip_through_json_keeps_everything(self, made):
        config = keras.saving.serialize_keras_object(made)
        back = keras.saving.deserialize_keras_object(
            json.loads(json.dumps(config))
        )
        assert back == made
        assert hash(back) == hash(made)
        assert back.noise == made.noise

    def test_copies_are_equal_and_other_values_are_not(self):
        assert copy.deepcopy(plan()) == plan()
        assert plan(noise_multiplier=1.2) != plan()
        assert plan(noise=Banded(2)) != plan(noise=Banded(3))


class TestEpsilon:
    def test_anchors(self):
        assert plan().epsilon() == pytest.approx(2.350, abs=5e-4)
        small = PrivacyPlan(1.0, 1, 6250, 1000, delta=1e-5)
        assert small.epsilon() == pytest.approx(0.0194, abs=5e-5)

    @pytest.mark.parametrize("adjacency", ["zero_out", "replace"])
    def test_one_gaussian_is_exact(self, adjacency):
        whole = PrivacyPlan(1.0, 100, 100, 1, delta=1e-5, adjacency=adjacency)
        assert whole.epsilon() == pytest.approx(4.377, abs=5e-4)

    def test_zero_steps_cost_nothing(self):
        assert plan().epsilon(steps=0) == 0
        assert plan(noise_multiplier=0).epsilon(steps=0) == 0

    def test_no_noise_is_infinite_whatever_else_is_missing(self):
        assert PrivacyPlan(0, 1, num_steps=1).epsilon(delta=1e-5) == math.inf
        assert plan(noise_multiplier=0).epsilon() == math.inf

    def test_grows_with_steps_and_falls_with_noise_and_delta(self):
        by_steps = [plan().epsilon(steps) for steps in (1, 240, 2400, 14_400)]
        assert by_steps == sorted(by_steps)
        assert by_steps[0] > 0
        assert plan(noise_multiplier=1.2).epsilon() < plan().epsilon()
        assert plan().epsilon(delta=1e-6) > plan().epsilon(delta=1e-5)

    def test_zero_out_costs_what_add_or_remove_costs(self):
        assert plan(adjacency="add_or_remove").epsilon() == plan().epsilon()

    @pytest.mark.parametrize(
        ("changes", "missing"),
        [
            ({"num_examples": None}, "num_examples"),
            ({"num_steps": None}, "steps"),
            ({"delta": None}, "delta"),
        ],
    )
    def test_missing_numbers_are_named(self, changes, missing):
        with pytest.raises(ValueError, match=missing):
            plan(**changes).epsilon()

    @pytest.mark.parametrize("steps", [-1, 1.5, math.nan])
    def test_steps_that_are_no_count_are_refused(self, steps):
        with pytest.raises(ValueError, match="steps"):
            plan().epsilon(steps=steps)

    @pytest.mark.parametrize("delta", [0.0, 1.0, 2.0])
    def test_delta_out_of_range_is_refused(self, delta):
        with pytest.raises(ValueError, match="delta"):
            plan().epsilon(delta=delta)


class TestCalibrate:
    @pytest.mark.parametrize("target", [0.1, 3.0, 10.0])
    @pytest.mark.parametrize(
        ("sampling", "noise"),
        [
            ("poisson", Independent()),
            ("shuffled", Independent()),
            ("cyclic_poisson", Banded(8)),
            ("in_order", Banded(8)),
        ],
    )
    def test_keeps_the_promise_within_one_percent(
        self, target, sampling, noise
    ):
        made = PrivacyPlan.calibrate(
            epsilon=target,
            delta=1e-5,
            num_examples=60_000,
            expected_batch_size=512,
            num_steps=500,
            sampling=sampling,
            noise=noise,
        )
        assert 0.99 * target <= made.epsilon() <= target
        assert (made.sampling, made.noise) == (sampling, noise)
        assert made.num_steps == 500

    def test_warns_of_correlated_noise_with_poisson_samples(self):
        # Each example is charged with all 46 updates: an ε of 3 takes much.
        with pytest.warns(UserWarning, match="sampling='shuffled'"):
            made = PrivacyPlan.calibrate(
                epsilon=3.0,
                delta=1e-4,
                num_examples=1437,
                expected_batch_size=64,
                epochs=2,
                noise=dpa.noise.SquareRoot(),
            )
        assert made.epsilon() <= 3.0

    @pytest.mark.parametrize("epsilon", [300.0, 1000.0])
    def test_hardly_any_noise(self, epsilon):
        # dp-accounting's PLD can't order the δs of one release at σ = 0.06.
        plan = dpa.PrivacyPlan.calibrate(
            epsilon=epsilon,
            delta=1e-4,
            num_examples=600,
            expected_batch_size=100,
            num_steps=48,
        )
        assert 0.99 * epsilon <= plan.epsilon() <= epsilon
        assert math.isfinite(
            dataclasses.replace(plan, noise_multiplier=0.06).epsilon()
        )

    def test_delta_is_looked_at_before_it_is_warned_of(self):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(ValueError, match="delta=1"):
                dpa.PrivacyPlan.calibrate(
                    epsilon=1.0,
                    delta=1,
                    num_examples=100,
                    expected_batch_size=10,
                    epochs=1,
                )

    def test_epochs_round_up_to_steps(self):
        numbers = {
            "epsilon": 3.0,
            "delta": 1e-4,
            "num_examples": 1437,
            "expected_batch_size": 64,
        }
        assert PrivacyPlan.calibrate(**numbers, epochs=2).num_steps == 46
        assert PrivacyPlan.calibrate(**numbers, epochs=0.5).num_steps == 12
        for both in ({}, {"epochs": 1, "num_steps": 23}):
            with pytest.raises(ValueError, match=r"epochs.*num_steps"):
                PrivacyPlan.calibrate(**numbers, **both)

    @pytest.mark.parametrize(
        ("name", "value"),
        [("epsilon", 0), ("epsilon", math.inf), ("delta", 0), ("epochs", -1)],
    )
    def test_arguments_out_of_range_are_named(self, name, value):
        numbers = {
            "epsilon": 3.0,
            "delta": 1e-4,
            "num_examples": 1437,
            "expected_batch_size": 64,
            "epochs": 2,
        }
        with pytest.raises(ValueError, match=name):
            PrivacyPlan.calibrate(**{**numbers, name: value})


class TestBatches:
    def test_needs_the_number_of_examples(self):
        with pytest.raises(ValueError, match="num_examples"):
            plan(num_examples=None).batches(np.zeros([10, 2]), steps=1)

    def test_gives_batches_of_the_plan(self):
        small = PrivacyPlan(1.0, 4, 10)
        dataset = small.batches(np.arange(10), steps=3)
        assert dataset.cardinality() == 3
        for batch in dataset:
            assert batch.x.shape == (small.max_batch_size,)
