"""The picture of a run: a test metric against ε and, if asked for, norms.

Drawn with matplotlib's objects, not with pyplot: no window, no global state.
"""

import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def training(
    history: Sequence[Mapping[str, Any]],
    path: pathlib.Path,
    *,
    title: str,
    delta: float,
    metric: str = "test_accuracy",
    nonprivate_norms: np.ndarray | None = None,
    l2_norm_clip: float | None = None,
) -> None:
    """Draws a test metric against ε over training.

    Args:
        history: Rows with `epsilon` and the metric, in order.
        path: Where the picture goes.
        title: Which data and optimizer.
        delta: δ at which `epsilon` holds.
        metric: "test_accuracy" or "test_loss".
        nonprivate_norms: Norms of per-example gradients for a second panel,
            which is marked as not private. None draws one panel.
        l2_norm_clip: The clip norm, drawn into the second panel.

    Privacy: the second panel shows raw gradients. ε does not cover it.
    """
    from matplotlib.figure import Figure

    panels = 1 if nonprivate_norms is None else 2
    figure = Figure(figsize=(6 * panels, 4), layout="constrained")
    left, *rest = figure.subplots(1, panels, squeeze=False)[0]
    _metric(left, history, delta, metric)
    left.set_title(title, fontsize="medium")
    if nonprivate_norms is not None:
        _histogram(rest[0], nonprivate_norms, l2_norm_clip)
    figure.savefig(path, dpi=120)


def _metric(
    axes: Any, history: Sequence[Mapping[str, Any]], delta: float, metric: str
) -> None:
    rows = [row for row in history if metric in row]
    share = metric == "test_accuracy"
    epsilons = [float(row["epsilon"]) for row in rows]
    values = [(100 if share else 1) * row[metric] for row in rows]
    if all(math.isfinite(epsilon) for epsilon in epsilons):
        axes.set_xlabel(f"ε spent (δ = {delta:g})")
    else:  # No noise: nothing to put on that axis.
        epsilons = [row["updates"] for row in rows]
        axes.set_xlabel("updates (ε = ∞)")
    axes.plot(epsilons, values, marker=".")
    axes.set_ylabel(metric.replace("_", " ") + (" (%)" if share else ""))
    axes.grid(alpha=0.3)


def _histogram(
    axes: Any, norms: np.ndarray, l2_norm_clip: float | None
) -> None:
    norms = norms[np.isfinite(norms) & (norms > 0)]
    if len(norms):
        low, high = np.log10(norms.min()), np.log10(norms.max())
        axes.hist(norms, bins=np.logspace(low - 0.01, high + 0.01, 50))
    axes.set_xscale("log")
    if l2_norm_clip is not None:
        axes.axvline(l2_norm_clip, color="black", linestyle="--")
        axes.annotate(
            "clip norm",
            (l2_norm_clip, 0.98),
            xycoords=("data", "axes fraction"),
            rotation=90,
            va="top",
            ha="right",
        )
    axes.set_xlabel("norm of one example's gradient, at the end of training")
    axes.set_ylabel("training examples")
    axes.set_title(
        "NOT PRIVATE: raw gradients of the training data",
        color="red",
        fontsize="medium",
    )
