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

The conditions of the last two are those of `methods_runs`.
"""

import argparse
import ast
import inspect
import io
import itertools
import time
import tokenize
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tf_dpadaptive as dpa
from benchmarks import methods, methods_runs
from tests.optimizers import contract as battery


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
    optimizer = methods.make(name, 1e-3, plan, 10**6, arguments)
    optimizer.build([keras.Variable(np.zeros((1000, 1000), "float32"))])
    return optimizer


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


def row(name: str, data_dir: str | None, seeds: int) -> list[str]:
    """The cells of one method."""
    method, kind = methods.ALL[name], getattr(dpa.optimizers, name)
    contract = method.contract()
    deviation = contract.deviation(contract.bench(battery.plan_of()))
    optimizer = built(name, method.arguments)
    yardstick = built("DPAdam", methods.ALL["DPAdam"].arguments)
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
    return [*cells, *methods_runs.accuracies(name, data_dir, seeds)]


def main() -> None:
    """Writes the table, row by row."""
    parser = argparse.ArgumentParser(description="See the module.")
    parser.add_argument("--data_dir", help="TFDS folder; without it no runs")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=2, help="runs a rate")
    parser.add_argument(
        "--methods", nargs="+", choices=methods.ALL, default=list(methods.ALL)
    )
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
