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
    result = json.loads(script["newest"]().read_text(encoding="utf-8"))
    assert script["page"](text, result) == text
    result["cases"][0]["ms"] *= 2
    assert script["page"](text, result) != text


def test_page_names_every_operation():
    from vllm_deepinfer.ops.triton import OPERATIONS

    text = (DOCS / "kernels.md").read_text(encoding="utf-8")
    assert not [name for name in (*OPERATIONS, "rope_angles") if f"`{name}`" not in text]
