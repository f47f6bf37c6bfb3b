"""The scheduling notebook runs from top to bottom and shows its plots; no outputs are committed.

Its cells assert what its text claims of the vote and the planner. Takes 15 s on a quiet core.
"""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[2] / "examples" / "scheduling.ipynb"
CELL_TIMEOUT_S = 300


@pytest.fixture(scope="module")
def committed() -> nbformat.NotebookNode:
    return nbformat.read(NOTEBOOK, as_version=4)


@pytest.fixture(scope="module")
def executed(committed, tmp_path_factory) -> tuple[nbformat.NotebookNode, Path]:
    folder = tmp_path_factory.mktemp("notebook")
    client = NotebookClient(
        nbformat.from_dict(committed),
        timeout=CELL_TIMEOUT_S,
        kernel_name="python3",
        resources={"metadata": {"path": str(folder)}},
    )
    return client.execute(), folder


def code_cells(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_it_is_committed_without_outputs(committed):
    assert len(code_cells(committed)) > 5
    assert all(not cell.outputs and cell.execution_count is None for cell in code_cells(committed))


def test_it_runs_and_shows_its_plots(executed):
    notebook, _ = executed
    cells = code_cells(notebook)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    plots = [
        output for cell in cells for output in cell.outputs if "image/png" in output.get("data", {})
    ]
    assert len(plots) == 5


def test_it_leaves_no_files(executed):
    _, folder = executed
    assert list(folder.iterdir()) == []
