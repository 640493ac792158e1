"""The noise of real training steps: its size, and that it never comes twice."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers
from scipy import stats

import tf_dpadaptive as dpa
from tests.training import build
from tf_dpadaptive.batch import Batch

SIGMA, CLIP, BATCH = 1.7, 0.5, 8
STDDEV = SIGMA * CLIP / BATCH
WIDE = 100


def wide(sigma: float = SIGMA, seed: int | None = 1, **arguments: Any) -> Any:
    """A model of 10 000 weights, updated by the released gradient itself."""
    model = dpa.privatize(
        keras.Sequential(
            [keras.Input((WIDE,)), layers.Dense(WIDE, use_bias=False)]
        )
    )
    optimizer = dpa.optimizers.DPSGD(
        1.0, CLIP, build.plan(sigma, BATCH), seed=seed
    )
    model.compile(optimizer, loss="mse", **arguments)
    return model


def nobody(rows: int = 8) -> Batch:
    return Batch(
        tf.zeros([rows, WIDE]),
        tf.zeros([rows, WIDE]),
        None,
        tf.ones([rows], tf.bool),
    )


def kolmogorov(sample: np.ndarray, stddev: float) -> float:
    """p-value of N(0, stddev²)."""
    return float(stats.kstest(sample / stddev, "norm").pvalue)


class SizeTest:
    """10 000 values a step: p < 1e-5 is one false alarm in 100 000 runs.

    The distance of N(0, σ²) from N(0, (3σ/2)²) is 0.097, and p < 1e-5 begins
    at 0.025: noise of 2/3 or 3/2 of the size can't pass (10 standard errors).
    """

    @pytest.mark.parametrize(
        "mode",
        [
            {"run_eagerly": True},
            {"jit_compile": False},
            pytest.param({"jit_compile": True}, marks=pytest.mark.xla),
        ],
        ids=str,
    )
    def test_noise_of_a_step_has_the_size_of_the_plan(self, mode: Any):
        rng = np.random.default_rng(1)
        x = rng.standard_normal((BATCH, WIDE)).astype(np.float32)
        y = rng.standard_normal((BATCH, WIDE)).astype(np.float32)
        noisy, exact = wide(**mode), wide(0.0, **mode)
        build.assign(exact, build.values(noisy))
        clean = build.taken(exact, lambda: exact.train_on_batch(x, y))
        noise = build.taken(noisy, lambda: noisy.train_on_batch(x, y)) - clean
        assert kolmogorov(noise, STDDEV) > 1e-5
        assert kolmogorov(noise, 2 / 3 * STDDEV) < 1e-5
        assert kolmogorov(noise, 3 / 2 * STDDEV) < 1e-5

    def test_noise_of_fit_has_the_size_of_the_plan(self):
        # One pass of four updates on Poisson batches: the sum of four noises.
        rng = np.random.default_rng(1)
        x = rng.standard_normal((4 * BATCH, WIDE)).astype(np.float32)
        y = np.zeros((4 * BATCH, WIDE), np.float32)
        # Gradients that do not depend on the weights cancel.
        noisy, exact = wide(), wide(0.0)
        build.assign(exact, build.values(noisy))
        linear = lambda y, p: tf.reduce_sum(p * 0.1, -1) + 0.0 * y[:, 0]  # noqa: E731
        moved = []
        for model in (noisy, exact):
            model.compile(model.optimizer, loss=linear)
            batches = model.optimizer.plan.batches(x, y, seed=3)
            moved.append(
                build.taken(
                    model, lambda m=model, b=batches: m.fit(b, verbose=0)
                )
            )
        noise = (moved[0] - moved[1]) / 2.0
        assert kolmogorov(noise, STDDEV) > 1e-5
        assert kolmogorov(noise, 2 / 3 * STDDEV) < 1e-5
        assert kolmogorov(noise, 3 / 2 * STDDEV) < 1e-5

    def test_noise_covers_every_variable_and_is_independent_of_the_data(self):
        model = build.compiled(
            optimizer=dpa.optimizers.DPSGD(
                1.0, CLIP, build.plan(SIGMA, BATCH), seed=1
            )
        )
        x, y = build.data()
        empty = build.padded(x, y)._replace(padding=tf.ones([16], tf.bool))
        noise = build.taken(model, lambda: model.train_on_batch(empty))
        assert (noise != 0).all()

    def test_replace_adjacency_doubles_the_noise(self):
        model = wide()
        double = wide()
        plan = build.plan(SIGMA, BATCH, adjacency="replace")
        double.compile(dpa.optimizers.DPSGD(1.0, CLIP, plan, seed=1), "mse")
        one = build.taken(model, lambda: model.train_on_batch(nobody()))
        two = build.taken(double, lambda: double.train_on_batch(nobody()))
        np.testing.assert_allclose(two, 2 * one, rtol=1e-5, atol=1e-6)


class NeverTwiceTest:
    """Without a seed, no two updates of any kind share their noise."""

    def test_noise_is_fresh_whatever_is_reset(self):
        model = wide(seed=None, run_eagerly=False)
        start = build.values(model)
        noises = []

        def draw() -> None:
            noises.append(
                build.taken(model, lambda: model.train_on_batch(nobody()))
            )

        draw()
        draw()
        model.optimizer.iterations.assign(0)
        draw()
        build.assign(model, start)
        draw()
        model.fit(
            tf.data.Dataset.from_tensors(nobody()), verbose=0, shuffle=False
        )
        draw()
        model.compile(model.optimizer, loss="mse")
        draw()
        optimizer = dpa.optimizers.DPSGD.from_config(
            model.optimizer.get_config()
        )
        model.compile(optimizer, loss="mse")
        draw()
        draw()
        distinct = np.unique(np.round(np.array(noises), 6), axis=0)
        assert len(distinct) == len(noises)
        # Not merely another sign or size: uncorrelated. 28 pairs of 10 000
        # values; 6 standard errors are one false alarm in 10⁷.
        correlations = np.corrcoef(noises) - np.eye(len(noises))
        assert np.abs(correlations).max() < 6 / np.sqrt(WIDE * WIDE)

    def test_two_optimizers_of_one_seed_agree(self):
        one, two = wide(), wide()
        np.testing.assert_allclose(
            build.taken(one, lambda: one.train_on_batch(nobody())),
            build.taken(two, lambda: two.train_on_batch(nobody())),
            rtol=1e-5,
            atol=1e-6,
        )

    @pytest.mark.xla
    def test_two_processes_differ_without_a_seed_and_agree_with_one(self):
        script = """
            import hashlib, warnings
            import numpy as np
            warnings.simplefilter("ignore")
            from tests.training import build, step_noise_test as t
            for jit in (False, True):
                for seed in (None, 7):
                    model = t.wide(seed=seed, jit_compile=jit)
                    noise = build.taken(
                        model, lambda: model.train_on_batch(t.nobody())
                    )
                    print("noise", np.round(noise[:3], 4).tolist())
        """
        outputs = [build.output_of(script) for _ in range(2)]
        one, two = (
            [line for line in output.splitlines() if line.startswith("noise")]
            for output in outputs
        )
        assert len(one) == 4
        assert one[0] != two[0]
        assert one[1] == two[1]
        assert one[2] != two[2]
        assert one[3] == two[3]
        assert len({one[0], two[0], one[2], two[2]}) == 4


class AccuracyTest:
    """Without noise a separable task is learnt; noise 1e6 destroys it."""

    @pytest.mark.parametrize(("sigma", "learns"), [(0.0, True), (1e6, False)])
    def test_huge_noise_destroys_accuracy(self, sigma: float, learns: bool):
        rng = np.random.default_rng(0)
        y = rng.integers(0, 4, 256)
        x = (np.eye(4)[y] + 0.1 * rng.standard_normal((256, 4))).astype(
            "float32"
        )
        plan = build.plan(sigma, 32, num_examples=256, num_steps=40)
        model = dpa.privatize(
            keras.Sequential([keras.Input((4,)), layers.Dense(4)])
        )
        model.compile(
            dpa.optimizers.DPAdam(0.1, 1.0, plan, seed=3),
            build.labels_loss(),
            metrics=["accuracy"],
        )
        model.fit(plan.batches(x, y, seed=1), epochs=5, verbose=0)
        accuracy = model.evaluate(x, y, verbose=0, return_dict=True)["accuracy"]
        # Chance is 0.25; random weights rarely sort half of the classes.
        assert accuracy > 0.95 if learns else accuracy < 0.8
