"""The table and the picture of all tasks of the private step.

One process a row. Plain peak memory is measured by a process of its own, which
never builds the private step.
"""

import json
import math
import pathlib
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

#: Kinds of private step: name in the table -> arguments.
KINDS = {
    "DPAdam": ["--optimizer", "DPAdam"],
    "DPAdam, XLA": ["--jit", "on"],
    "StP": ["--optimizer", "DPAdamScaleThenPrivatize"],
    "vectorized": ["--clipping", "vectorized"],
}
_HEAD = (
    "| task | batch | kind | private ms | plain ms | ratio | private MB | "
    "plain MB | memory ratio |"
)


def write(
    workdir: pathlib.Path,
    steps: int,
    sizes: Mapping[str, Sequence[int]],
    kinds: Iterable[str] = KINDS,
) -> None:
    """Measures every task, batch size and kind; writes JSON, table, picture.

    A row that fails (the vectorized engine refuses attention) says so.

    Args:
        workdir: Folder for `private_step.json`, `.md` and `.png`.
        steps: Steps a row, at least.
        sizes: Batch sizes by task.
        kinds: Keys of `KINDS`.
    """
    workdir.mkdir(parents=True, exist_ok=True)
    rows = []
    for task, batches in sizes.items():
        for batch in batches:
            plain = _measured(workdir, task, batch, steps, "plain")
            for kind in kinds:
                row = _measured(workdir, task, batch, steps, kind)
                row["plain_peak_rss_mb"] = plain.get("peak_rss_mb", math.nan)
                rows.append(row)
                _save(workdir, rows)


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Returns the rows as a Markdown table.

    Args:
        rows: Results of `benchmarks.private_step`, with `kind` and
            `plain_peak_rss_mb`; or with an `error`.
    """
    lines = [_HEAD, "|---" * 9 + "|"]
    for row in rows:
        start = f"| {row['task']} | {row['batch']} | {row['kind']} |"
        if "error" in row:
            lines.append(f"{start} {row['error']} ||||||")
            continue
        memory = row["peak_rss_mb"] / row["plain_peak_rss_mb"]
        lines.append(
            f"{start} {row['median_ms']:.1f} | {row['plain_median_ms']:.1f} | "
            f"{row['ratio']:.2f} | {row['peak_rss_mb']:.0f} | "
            f"{row['plain_peak_rss_mb']:.0f} | {memory:.2f} |"
        )
    return "\n".join(lines) + "\n"


def draw(rows: Sequence[dict[str, Any]], path: pathlib.Path) -> None:
    """Draws the ratio and the memory against the batch size, task by task.

    Args:
        rows: As for `table`.
        path: Where the picture goes.
    """
    from matplotlib.figure import Figure

    rows = [row for row in rows if "error" not in row]
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    if not tasks:
        return
    figure = Figure(figsize=(4 * len(tasks), 7), layout="constrained")
    grid = figure.subplots(2, len(tasks), squeeze=False)
    for (above, below), task in zip(grid.T, tasks, strict=True):
        of_task = [row for row in rows if row["task"] == task]
        for kind in dict.fromkeys(row["kind"] for row in of_task):
            line = [row for row in of_task if row["kind"] == kind]
            sizes = [row["batch"] for row in line]
            above.plot(sizes, [r["ratio"] for r in line], "o-", label=kind)
            below.plot(sizes, [r["peak_rss_mb"] for r in line], "o-")
        sizes = sorted({row["batch"] for row in of_task})
        plain = {row["batch"]: row["plain_peak_rss_mb"] for row in of_task}
        above.axhline(1.0, color="black", linestyle="--", label="plain Keras")
        below.plot(sizes, [plain[size] for size in sizes], "k--")
        above.set_title(task)
        above.legend(fontsize="small")
        below.set_xlabel("batch size")
        for axes in (above, below):
            axes.set_xscale("log", base=2)
            axes.set_xticks(sizes, [str(size) for size in sizes])
            axes.grid(alpha=0.3)
        above.set_yscale("log")
        below.set_ylim(bottom=0)
    grid[0][0].set_ylabel("private step / plain step")
    grid[1][0].set_ylabel("peak memory of the process (MB)")
    figure.savefig(path, dpi=120)


def _save(workdir: pathlib.Path, rows: Sequence[dict[str, Any]]) -> None:
    text = json.dumps(rows, indent=2)
    (workdir / "private_step.json").write_text(text + "\n")
    (workdir / "private_step.md").write_text(table(rows))
    draw(rows, workdir / "private_step.png")


def _measured(
    workdir: pathlib.Path, task: str, batch: int, steps: int, kind: str
) -> dict[str, Any]:
    name = f"{task}-{batch}-{kind}".replace(", ", "-")
    path = workdir / f"{name}.json"
    command = [sys.executable, "-m", "benchmarks.private_step"]
    command += ["--task", task, "--batch", str(batch), "--steps", str(steps)]
    command += ["--json", str(path)]
    command += KINDS.get(kind, ["--clipping", "none"])
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    row = {"task": task, "batch": batch, "kind": kind}
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit {done.returncode}"]
        return row | {"error": lines[-1][:120].replace("|", "/")}
    return json.loads(path.read_text()) | row
