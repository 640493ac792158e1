"""One row a method: size, exactness, sensitivity, state, time and accuracy.

    python -m benchmarks.methods_table --data_dir ~/tensorflow_datasets \
        --out methods.md

Columns:
    code        lines of the method's file, without docstrings and comments
    deviation   largest |Δθ|/|θ| from the NumPy transcription over 14 steps
    neighbour   worst distance of neighbouring batches' releases over what is
                charged (at most 1), over all three adjacencies
    bytes       optimizer state a parameter, at a million of them
    update      time of noise and update over DPAdam's (clipping not included)
    digits      best accuracy of the search (mean over --seeds runs), and its
                learning rate
    MNIST       test accuracy of ONE run at that learning rate, ε = 3

The run: the classic network with tanh, B = 1024, 5 epochs, δ = 1e-5, true
Poisson batches, the arguments of METHODS. The search: learning rates GRID of
the method's family, on scikit-learn's digits drawn as large as MNIST's, with
the run's network and number of steps, and B = 256 at the noise of the run's
mean gradient, σ/B. So the search is under the run's conditions, not at its ε;
what search and choice cost is not in ε: the data are public.
"""

import argparse
import ast
import dataclasses
import functools
import inspect
import io
import itertools
import statistics
import time
import tokenize
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

import tf_dpadaptive as dpa
from tests.optimizers import contract as battery
from tests.optimizers import dp_post_processing_test, optimizers_test
from tests.reference import post_processing
from tf_dpadaptive.data import tasks
from tf_dpadaptive.experiments import models, sections

EPSILON, DELTA, NUM_PUBLIC = 3.0, 1e-5, 500
BATCH_SIZE, SEARCH_BATCH_SIZE, EPOCHS = 1024, 256, 5
GRID: Mapping[str, tuple[float, ...]] = {
    "sgd": (0.3, 1.0, 3.0, 10.0),
    "adam": (1e-3, 3e-3, 1e-2, 3e-2),
    "adagrad": (3e-3, 1e-2, 3e-2, 1e-1),
}


class Method(NamedTuple):
    """How a method is tested, and how it is trained.

    Attributes:
        contract: Its contract test.
        grid: Key of GRID.
        arguments: Beside the learning rate; functions are asked with m, the
            number of parameters.
    """

    contract: Any
    grid: str
    arguments: Mapping[str, Any]


_CLIP = {"l2_norm_clip": 1.0}
_SCALED = {"l2_norm_clip": lambda m: m**0.5 / 2, "scale_epsilon": 1e-3}
_DELAYED = {**_CLIP, "plain_steps": 20, "adaptive_steps": 20, "epsilon": 1e-3}
_STABLE = {**_CLIP, "epsilon": 1e-3}
METHODS: Mapping[str, Method] = {
    name: Method(getattr(optimizers_test, name + test), grid, arguments)
    for name, test, grid, arguments in (
        ("DPSGD", "Test", "sgd", _CLIP),
        ("DPAdam", "Test", "adam", _CLIP),
        ("DPAdamW", "Test", "adam", _CLIP),
        ("DPAdagrad", "Test", "adagrad", _CLIP),
        ("DPAdamBiasCorrected", "Test", "adam", _STABLE),
        ("DPAdagradBiasCorrected", "Test", "adagrad", _STABLE),
        ("DPAdamScaleThenPrivatize", "Test", "adam", _SCALED),
        (
            "DPAdagradScaleThenPrivatize",
            "Test",
            "adagrad",
            {"l2_norm_clip": 10.0, "scale_epsilon": 1e-2},
        ),
        ("DPAdamIndependentMoments", "Test", "adam", _STABLE),
        ("DPAdagradIndependentMoments", "TightTest", "adagrad", _STABLE),
        ("DPAdamJointMoments", "Test", "adam", _STABLE),
        ("DPAdagradJointMoments", "Test", "adagrad", _STABLE),
        ("DPRMSpropDelayed", "Test", "sgd", _DELAYED),
        ("DPAdagradDelayed", "Test", "sgd", _DELAYED),
        ("DPAdamSideInformation", "Test", "adam", _STABLE),
        ("AdaCliP", "Test", "sgd", {**_CLIP, "h2": lambda m: 4 / m}),
        ("DPMicroAdam", "Test", "adam", _CLIP),
        ("NonPrivatePreconditionerAdam", "Test", "adam", _CLIP),
    )
}


class _PostProcessing(dp_post_processing_test.DPPostProcessingTest):
    """With an inner optimizer that has a transcription."""

    def make(self, plan: dpa.PrivacyPlan, **arguments: Any) -> Any:
        inner = keras.optimizers.SGD(0.1, momentum=0.9)
        given = {"l2_norm_clip": battery.CLIP, "seed": 1, **arguments}
        return dpa.optimizers.DPPostProcessing(inner, plan=plan, **given)

    def reference(self, shapes: Any, **arguments: Any) -> Any:
        return post_processing.SGD(shapes, momentum=0.9, **arguments)


ALL = {
    **METHODS,
    "DPPostProcessing": Method(_PostProcessing, "adam", _CLIP),
}


def code_lines(kind: type) -> int:
    """Lines of a class' file that are neither blank, comment nor docstring."""
    source = Path(inspect.getfile(kind)).read_text()
    skipped = (
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENDMARKER,
    )
    lines = {
        line
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type not in skipped
        for line in range(token.start[0], token.end[0] + 1)
    }
    for node in ast.walk(ast.parse(source)):
        if (
            isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
            and ast.get_docstring(node) is not None
        ):
            text = node.body[0]
            lines -= set(range(text.lineno, (text.end_lineno or 0) + 1))
    return len(lines)


def neighbour_ratio(contract: Any) -> float:
    """Worst ratio of the contract's neighbour test."""
    odd = [1e30, 1e18, 1e-20, np.nan, np.inf, 0.0]
    worst = 0.0
    for adjacency in battery.ADJACENCIES:
        bench = contract.moved(plan=battery.plan_of(adjacency=adjacency))
        few = contract.worst_ratio(bench, 3, [], times=1e4)
        many = contract.worst_ratio(bench, 2 * battery.B, odd)
        worst = max(worst, few, many)
    return worst


def built(name: str, arguments: Mapping[str, Any]) -> Any:
    """The method on a million parameters."""
    plan = dpa.PrivacyPlan(1.0, expected_batch_size=4096, num_steps=1000)
    optimizer = make(name, 1e-3, plan, 10**6, arguments)
    optimizer.build([keras.Variable(np.zeros((1000, 1000), "float32"))])
    return optimizer


def make(
    name: str,
    rate: float,
    plan: dpa.PrivacyPlan,
    size: int,
    arguments: Mapping[str, Any],
) -> Any:
    """The optimizer, with arguments for a model of `size` parameters."""
    given: dict[str, Any] = {
        key: value(size) if callable(value) else value
        for key, value in arguments.items()
    }
    if name == "DPPostProcessing":
        return dpa.optimizers.DPPostProcessing(
            keras.optimizers.Adam(rate), plan=plan, **given
        )
    return getattr(dpa.optimizers, name)(rate, plan=plan, **given)


def state_bytes(optimizer: Any) -> float:
    """Bytes a parameter that outlive a step, but for scalars."""
    return (
        sum(
            np.prod(v.shape) * np.dtype(v.dtype).itemsize
            for v in optimizer.variables
            if v.shape
        )
        / 10**6
    )


def update_of(optimizer: Any) -> Callable[[], Any]:
    """Noise and update, compiled."""
    total = tf.zeros((1000, 1000))

    @tf.function
    def update() -> None:
        if hasattr(optimizer, "_public"):
            optimizer._public = {0: total}
        geometry = optimizer.geometry()
        optimizer.update(optimizer.release({0: total}), geometry, {})

    update()
    return update


def relative_time(optimizer: Any, yardstick: Any, times: int = 40) -> float:
    """Least time of an update over the yardstick's, in alternation.

    The least, and not the median: others use this machine too.
    """
    pair = [update_of(optimizer), update_of(yardstick)]
    seen: list[list[float]] = [[], []]
    for _ in range(times):
        for update, kept in zip(pair, seen, strict=True):
            begin = time.perf_counter()
            update()
            kept.append(time.perf_counter() - begin)
    return min(seen[0]) / min(seen[1])


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
    arguments = ALL[name].arguments
    optimizer = make(name, rate, plan, model.count_params(), arguments)
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


def runs(name: str, data_dir: str, seeds: int) -> list[str]:
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
        for rate in GRID[ALL[name].grid]
    }
    print(name, {r: f"{a:.1%}" for r, a in found.items()}, flush=True)
    rate = max(found, key=lambda r: found[r])
    reached, spent = accuracy(name, rate, mnist, final, 1)
    if ALL[name].contract.private and not spent <= EPSILON:
        raise RuntimeError(f"{name} has spent ε = {spent} > {EPSILON}.")
    return [f"{found[rate]:.1%} at {rate:g}", f"{reached:.1%}"]


def row(name: str, data_dir: str | None, seeds: int) -> list[str]:
    """The cells of one method."""
    method, kind = ALL[name], getattr(dpa.optimizers, name)
    contract = method.contract()
    deviation = contract.deviation(contract.bench(battery.plan_of()))
    optimizer = built(name, method.arguments)
    yardstick = built("DPAdam", METHODS["DPAdam"].arguments)
    cells = [
        f"`{name}`",
        str(code_lines(kind)),
        f"{deviation:.0e}",
        f"{neighbour_ratio(contract):.4f}",
        f"{state_bytes(optimizer):.2f}",
        f"{relative_time(optimizer, yardstick):.1f}",
    ]
    if data_dir is None:
        return cells
    return [*cells, *runs(name, data_dir, seeds)]


def main() -> None:
    """Writes the table, row by row."""
    parser = argparse.ArgumentParser(description="See the module.")
    parser.add_argument("--data_dir", help="TFDS folder; without it no runs")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=2, help="runs a rate")
    parser.add_argument("--methods", nargs="+", choices=ALL, default=list(ALL))
    arguments = parser.parse_args()
    # Hopeless settings warn; the table shows what comes of them.
    warnings.simplefilter("ignore")
    head = "method,code,deviation,neighbour,bytes,update"
    if arguments.data_dir:
        head += ",digits,MNIST"
    columns = head.split(",")
    lines = [columns, ["---"] * len(columns)]
    with arguments.out.open("w") as out:
        rows = (
            row(name, arguments.data_dir, arguments.seeds)
            for name in arguments.methods
        )
        for cells in itertools.chain(lines, rows):
            print("| " + " | ".join(cells) + " |", file=out, flush=True)


if __name__ == "__main__":
    main()
