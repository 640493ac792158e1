import numpy as np
import pytest
import tensorflow as tf
from keras import random  # noqa: TID251, their replacement is tested

from tf_dpadaptive.clipping.randomness import Draws, layer_randomness

generator = random.SeedGenerator(1)
SEEDS = tf.constant([[3, 5], [7, 2], [3, 6], [2**31 - 2, 0]], tf.int64)
DRAWS = {
    "uniform": lambda g, n: random.uniform((n, 200), seed=g),
    "normal": lambda g, n: random.normal((n, 200), seed=g),
    "truncated": lambda g, n: random.truncated_normal((n, 200), seed=g),
    "randint": lambda g, n: random.randint((n, 200), 0, 9, seed=g),
    "categorical": lambda g, n: random.categorical(
        tf.zeros((n, 5)), 200, seed=g
    ),
    "dropout": lambda g, n: random.dropout(tf.ones((n, 20, 10)), 0.3, seed=g),
    "spatial dropout": lambda g, n: random.dropout(
        tf.ones((n, 20, 10)), 0.3, (None, 1, None), seed=g
    ),
    "a fixed seed": lambda g, n: random.uniform((n, 200), seed=3),
}


def drawn(draw, seeds):
    rows = 1 if seeds.shape.rank == 1 else seeds.shape[0]
    with layer_randomness(Draws.of([(generator.state, seeds)])):
        return draw(generator, rows).numpy(), draw(generator, rows).numpy()


class LayerRandomnessTest:
    @pytest.mark.parametrize("name", DRAWS)
    def test_a_row_is_what_its_example_draws_alone(self, name):
        rows = drawn(DRAWS[name], SEEDS)
        for i in range(4):
            alone = drawn(DRAWS[name], SEEDS[i])
            for got, want in zip(rows, alone, strict=True):
                np.testing.assert_array_equal(got[i : i + 1], want)

    def test_rows_and_draws_differ(self):
        first, second = drawn(DRAWS["uniform"], SEEDS)
        both = np.concatenate([first, second])
        assert len(np.unique(np.round(both, 6))) > 0.99 * both.size
        assert np.abs(np.corrcoef(both) - np.eye(8)).max() < 0.35

    def test_vectorized_rows_differ(self):
        def one(seed):
            with layer_randomness(Draws.of([(generator.state, seed)])):
                return DRAWS["dropout"](generator, 1)[0]

        got = tf.vectorized_map(one, SEEDS, fallback_to_while_loop=False)
        np.testing.assert_array_equal(got, drawn(DRAWS["dropout"], SEEDS)[0])

    @pytest.mark.parametrize(
        ("name", "mean", "deviation"),
        [
            ("uniform", 0.5, 12**-0.5),
            ("normal", 0.0, 1.0),
            ("truncated", 0.0, 0.8796),
            ("randint", 4.0, (80 / 12) ** 0.5),
            ("categorical", 2.0, 2**0.5),
            ("dropout", 1.0, (0.3 / 0.7) ** 0.5),
        ],
    )
    def test_moments(self, name, mean, deviation):
        # 200,000 draws: five standard errors, false alarm below 1e-6 each.
        seeds = tf.random.stateless_uniform(
            [1000, 2], [1, 2], 0, 2**31 - 1, tf.int64
        )
        values = drawn(DRAWS[name], seeds)[0].astype(float)
        error = 5 / values.size**0.5
        assert abs(values.mean() - mean) < error * deviation
        assert abs(values.std() / deviation - 1) < 2 * error

    def test_each_bit_place_is_even_over_examples(self):
        # Column sums of 4000 fair coins: six deviations, 200 columns.
        seeds = tf.constant([[i, 0] for i in range(4000)], tf.int64)
        low = drawn(DRAWS["uniform"], seeds)[0] < 0.5
        assert np.abs(low.sum(0) - 2000).max() < 6 * 1000**0.5

    def test_shapes_that_are_not_rows_are_refused(self):
        with pytest.raises(NotImplementedError, match="one row an example"):
            drawn(lambda g, n: random.uniform((3, 2), seed=g), SEEDS)

    def test_a_distribution_without_a_batched_form_is_refused(self):
        def gamma(g, n):
            return random.gamma((n, 2), 1.0, seed=g)

        drawn(gamma, SEEDS[0])
        with pytest.raises(NotImplementedError, match="no form"):
            drawn(gamma, SEEDS)

    def test_keras_is_itself_again_afterwards(self):
        before = random.uniform((3,), seed=4).numpy()
        drawn(DRAWS["uniform"], SEEDS)
        after = random.uniform((3,), seed=4).numpy()
        np.testing.assert_array_equal(before, after)
