"""Tests of what the benchmarks write; never of a time."""

import json

import pytest

from benchmarks import private_step_table

ROW = {
    "task": "mlp",
    "median_ms": 12.0,
    "plain_median_ms": 10.0,
    "ratio": 1.2,
    "peak_rss_mb": 600.0,
    "plain_peak_rss_mb": 500.0,
}
ROWS = [
    {**ROW, "batch": 64, "kind": "DPAdam"},
    {**ROW, "batch": 256, "kind": "DPAdam"},
    {"task": "mlp", "batch": 64, "kind": "vectorized", "error": "refused"},
]


def test_table_has_ratios_of_time_and_memory():
    lines = private_step_table.table(ROWS).splitlines()
    assert len(lines) == 2 + 3
    cells = "| mlp | 64 | DPAdam | 12.0 | 10.0 | 1.20 | 600 | 500 | 1.20 |"
    assert lines[2] == cells
    assert "refused" in lines[4]
    assert len({line.count("|") for line in lines}) == 1


def test_picture_leaves_out_what_failed(tmp_path):
    private_step_table.draw(ROWS, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
    private_step_table.draw(ROWS[2:], tmp_path / "nothing.png")
    assert not (tmp_path / "nothing.png").exists()


@pytest.mark.slow
def test_one_task_is_measured_and_written(tmp_path):
    private_step_table.write(tmp_path, 1, {"logreg": [8]}, ["DPAdam"])
    (row,) = json.loads((tmp_path / "private_step.json").read_text())
    assert row["ratio"] > 0
    assert row["plain_peak_rss_mb"] > 0
    assert row["versions"]["keras"]
    assert (
        "| logreg | 8 | DPAdam |" in (tmp_path / "private_step.md").read_text()
    )
    assert (tmp_path / "private_step.png").exists()
