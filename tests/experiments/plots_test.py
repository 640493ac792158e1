"""Tests of the picture of a run."""

import numpy as np
import pytest
from matplotlib.figure import Figure

from tf_dpadaptive.experiments import plots

HISTORY = [
    {"updates": 3, "epsilon": 0.5, "test_accuracy": 0.4},
    {"updates": 6, "epsilon": 0.8, "test_accuracy": 0.7},
]


@pytest.fixture
def drawn(monkeypatch, tmp_path):
    """Draws, and returns the figure that was written."""
    figures = []
    save = Figure.savefig

    def keep(figure, *args, **kwargs):
        figures.append(figure)
        save(figure, *args, **kwargs)

    monkeypatch.setattr(Figure, "savefig", keep)

    def draw(history=HISTORY, **kwargs):
        path = tmp_path / "picture.png"
        plots.training(history, path, title="here", delta=1e-5, **kwargs)
        assert path.read_bytes().startswith(b"\x89PNG")
        return figures[-1]

    return draw


def test_accuracy_stands_against_epsilon(drawn):
    (axes,) = drawn().axes
    np.testing.assert_array_equal(
        axes.lines[0].get_xydata(), [[0.5, 40.0], [0.8, 70.0]]
    )
    assert "1e-05" in axes.get_xlabel()
    assert axes.get_title() == "here"


def test_loss_stands_there_if_asked_for(drawn):
    rows = [{**row, "test_loss": 2.0} for row in HISTORY]
    (axes,) = drawn(rows, metric="test_loss").axes
    np.testing.assert_array_equal(axes.lines[0].get_ydata(), [2.0, 2.0])
    assert axes.get_ylabel() == "test loss"


def test_infinite_epsilon_is_drawn_against_updates(drawn):
    rows = [{**row, "epsilon": "inf"} for row in HISTORY]
    (axes,) = drawn(rows).axes
    np.testing.assert_array_equal(axes.lines[0].get_xdata(), [3, 6])
    assert "∞" in axes.get_xlabel()


def test_gradient_norms_are_marked_as_not_private(drawn):
    norms = np.array([0.01, 0.1, 1.0, 0.0, np.inf])
    _, axes = drawn(nonprivate_norms=norms, l2_norm_clip=0.5).axes
    assert "NOT PRIVATE" in axes.get_title()
    assert axes.lines[0].get_xdata()[0] == 0.5
    assert sum(bar.get_height() for bar in axes.patches) == 3


def test_empty_history_is_drawn_all_the_same(drawn):
    drawn([], nonprivate_norms=np.zeros(3))
