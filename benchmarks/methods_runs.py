"""The accuracies of the table: a search on the digits, a run on MNIST.

The run: the classic network with tanh, B = 1024, 5 epochs, ε = 3, δ = 1e-5,
true Poisson batches, the arguments of `methods.ALL`. The search: learning rates
GRID of the method's family, on scikit-learn's digits drawn as large as MNIST's,
with the run's network and number of steps, and B = 256 at the noise of the
run's mean gradient, σ/B. So the search is under the run's conditions, not at
its ε; what search and choice cost is not in ε: the data are public.
"""

import dataclasses
import functools
import statistics

import keras
import numpy as np

import tf_dpadaptive as dpa
from benchmarks import methods
from tf_dpadaptive.data import tasks
from tf_dpadaptive.experiments import models, sections

EPSILON, DELTA, NUM_PUBLIC = 3.0, 1e-5, 500
BATCH_SIZE, SEARCH_BATCH_SIZE, EPOCHS = 1024, 256, 5


@functools.cache
def final_plan(num_examples: int) -> dpa.PrivacyPlan:
    """The plan of the final run."""
    return dpa.PrivacyPlan.calibrate(
        epsilon=EPSILON,
        delta=DELTA,
        num_examples=num_examples,
        expected_batch_size=BATCH_SIZE,
        epochs=EPOCHS,
    )


def search_plan(final: dpa.PrivacyPlan, num_examples: int) -> dpa.PrivacyPlan:
    """The plan of a run of the search: σ/B and steps of the final one."""
    return dpa.PrivacyPlan(
        final.noise_multiplier * SEARCH_BATCH_SIZE / BATCH_SIZE,
        expected_batch_size=SEARCH_BATCH_SIZE,
        num_examples=num_examples,
        num_steps=final.num_steps,
        delta=DELTA,
    )


def large_digits() -> tasks.Task:
    """scikit-learn's digits, each pixel 3x3, with a margin: 28x28."""
    task = tasks.load(sections.data("digits"))

    def enlarged(images: np.ndarray) -> np.ndarray:
        images = images.repeat(3, axis=1).repeat(3, axis=2)
        return np.pad(images, ((0, 0), (2, 2), (2, 2), (0, 0)))

    return dataclasses.replace(
        task, x_train=enlarged(task.x_train), x_test=enlarged(task.x_test)
    )


def accuracy(
    name: str, rate: float, task: tasks.Task, plan: dpa.PrivacyPlan, seed: int
) -> tuple[float, float]:
    """Test accuracy of one private run, 0 if it diverged; and its ε.

    The seed is that of the initial weights; noise and batches are secret.
    """
    keras.utils.set_random_seed(seed)
    model = dpa.privatize(models.mnist_cnn(task))
    arguments = methods.ALL[name].arguments
    optimizer = methods.make(name, rate, plan, model.count_params(), arguments)
    if name == "DPAdamSideInformation":
        x, y = task.examples("public")
        optimizer.set_public_batches(
            (x[i : i + 100], y[i : i + 100]) for i in range(0, NUM_PUBLIC, 100)
        )
    model.compile(
        optimizer,
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    model.fit(task.batches(plan, plan.num_steps), verbose=0)
    logits = model.predict(task.x_test, batch_size=500, verbose=0)
    if not np.all(np.isfinite(logits)):
        return 0.0, model.epsilon()
    right = np.argmax(logits, axis=1) == task.y_test
    return float(np.mean(right)), model.epsilon()


def accuracies(name: str, data_dir: str, seeds: int) -> list[str]:
    """The cells of search and final run."""
    digits = large_digits()
    mnist = tasks.load(sections.data("mnist", dir=data_dir))
    if name == "DPAdamSideInformation":
        digits, mnist = (t.with_public(NUM_PUBLIC) for t in (digits, mnist))
    final = final_plan(len(mnist.x_train))
    search = search_plan(final, len(digits.x_train))
    found = {
        rate: statistics.mean(
            accuracy(name, rate, digits, search, seed)[0]
            for seed in range(1, seeds + 1)
        )
        for rate in methods.GRID[methods.ALL[name].grid]
    }
    print(name, {r: f"{a:.1%}" for r, a in found.items()}, flush=True)
    rate = max(found, key=lambda r: found[r])
    reached, spent = accuracy(name, rate, mnist, final, 1)
    if methods.ALL[name].contract.private and not spent <= EPSILON:
        raise RuntimeError(f"{name} has spent ε = {spent} > {EPSILON}.")
    return [f"{found[rate]:.1%} at {rate:g}", f"{reached:.1%}"]
