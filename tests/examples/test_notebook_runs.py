"""The quickstart notebook runs in a fresh kernel from top to bottom; no outputs are committed.

Its cells assert what its text claims. If this breaks, a new user's first steps fail. Takes 40 s.
"""

from __future__ import annotations

import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

NOTEBOOK = Path(__file__).parents[2] / "examples" / "quickstart.ipynb"
CELL_TIMEOUT_S = 300


@pytest.fixture(scope="module")
def committed() -> nbformat.NotebookNode:
    return nbformat.read(NOTEBOOK, as_version=4)


def run(notebook: nbformat.NotebookNode, folder: Path) -> nbformat.NotebookNode:
    client = NotebookClient(
        notebook,
        timeout=CELL_TIMEOUT_S,
        kernel_name="python3",
        resources={"metadata": {"path": str(folder)}},
    )
    return client.execute()


@pytest.fixture(scope="module")
def executed(committed, tmp_path_factory) -> tuple[nbformat.NotebookNode, Path]:
    folder = tmp_path_factory.mktemp("notebook")
    return run(nbformat.from_dict(committed), folder), folder


def printed(notebook: nbformat.NotebookNode, containing: str) -> str:
    """What the one code cell whose source contains a text printed."""
    [cell] = [c for c in notebook.cells if c.cell_type == "code" and containing in c.source]
    return "".join(o.text for o in cell.outputs if o.get("name") == "stdout")


def test_it_is_committed_without_outputs(committed):
    code = [cell for cell in committed.cells if cell.cell_type == "code"]
    assert len(code) > 5
    assert all(not cell.outputs and cell.execution_count is None for cell in code)


def test_every_cell_ran_on_this_package(executed):
    notebook, _ = executed
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert "platform DeepInferCpuPlatform" in printed(notebook, "current_platform")


def test_it_shows_the_published_totals(executed):
    notebook, _ = executed
    assert "published: 96085 tensors, 510286023000 bytes" in printed(notebook, '"schema"')


def test_it_leaves_no_files(executed):
    _, folder = executed
    assert list(folder.iterdir()) == []


def test_an_error_in_a_cell_would_be_seen(tmp_path):
    broken = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("assert 1 == 2")])
    with pytest.raises(CellExecutionError, match="AssertionError"):
        run(broken, tmp_path)


def test_the_kernel_is_this_interpreter(tmp_path):
    cell = nbformat.v4.new_code_cell("import sys; print(sys.executable)")
    notebook = run(nbformat.v4.new_notebook(cells=[cell]), tmp_path)
    assert notebook.cells[0].outputs[0].text.strip() == sys.executable
