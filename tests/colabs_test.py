"""Every colab runs from top to bottom, at smoke size."""

import pathlib

import nbformat
import pytest
from nbclient import NotebookClient

FOLDER = pathlib.Path(__file__).parents[1] / "colabs"
SMOKE = "EPOCHS = 2"


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.ipynb")))
def test_colab_runs(path, tmp_path):
    notebook = nbformat.read(path, as_version=4)
    (parameters,) = [
        cell
        for cell in notebook.cells
        if "parameters" in cell.metadata.get("tags", ())
    ]
    parameters.source = SMOKE
    NotebookClient(
        notebook, timeout=600, resources={"metadata": {"path": tmp_path}}
    ).execute()
    printed = "".join(
        output.get("text", "")
        for cell in notebook.cells
        for output in cell.get("outputs", ())
    )
    assert "differential privacy after 12 updates" in printed


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.ipynb")))
def test_colab_is_stored_without_outputs(path):
    for cell in nbformat.read(path, as_version=4).cells:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None
