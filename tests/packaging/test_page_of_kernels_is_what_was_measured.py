"""The figures in docs/kernels.md are those of the newest recorded measurement.

If this fails, the page claims a speed that nobody measured: run docs/make_kernels_figures.py.
"""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def script(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(DOCS), *sys.path])
    return runpy.run_path(str(DOCS / "make_kernels_figures.py"))


def test_page_holds_the_newest_result(script):
    text = (DOCS / "kernels.md").read_text(encoding="utf-8")
    path = script["newest"]()
    result = json.loads(path.read_text(encoding="utf-8"))
    assert script["page"](text, result, path.name) == text
    assert path.name in text
    result["cases"][0]["ms"] *= 2
    assert script["page"](text, result, path.name) != text


def test_code_that_was_never_measured_has_no_figures(script):
    for name, operations in script["REWRITTEN_SINCE"].items():
        result = json.loads((script["RESULTS"] / name).read_text(encoding="utf-8"))
        measured = {entry["operation"] for entry in result["cases"]}
        assert measured >= set(operations), f"{name} never had {operations}"
        shown = script["cases"](result, name)
        for operation in measured:
            assert (f"| {operation} |" in shown) == (operation not in operations)
        # Another result of the same cases shows them all.
        assert f"| {operations[0]} |" in script["cases"](result, "another.json")


def test_page_names_every_operation():
    from vllm_deepinfer.ops.triton import OPERATIONS

    text = (DOCS / "kernels.md").read_text(encoding="utf-8")
    assert not [name for name in (*OPERATIONS, "rope_angles") if f"`{name}`" not in text]
