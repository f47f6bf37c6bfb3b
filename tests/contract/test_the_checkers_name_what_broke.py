"""Both checkers of the contract name each symbol that is not as expected, and accept the others.

The sources here break each rule once. If this breaks, an upgrade that moved or changed what this
package relies on passes for one that did not.
"""

from __future__ import annotations

import importlib.util
import sys
import types

import pytest

from vllm_deepinfer.contract.installed import check_loaded
from vllm_deepinfer.contract.source_reader import check_source
from vllm_deepinfer.contract.symbols import calls, has_fields, kernel, overrides, uses

IMPORTS = """
import fake.base as aliased
from elsewhere import foreign
from fake import base
from fake.base import gone
from .base import Base as Relative, function as renamed
"""
SOURCE = """
from fake.base import Base
CONSTANT = 1
if True:
    def conditional(a, b=1): ...
def plain(a, b, c=1, *, d): ...
def open_ended(a, **kwargs): ...
class Child(Base):
    declared: int = 1
    def __init__(self):
        self.assigned = 1
    def method(self, x): ...
    class Inner:
        x = 1
"""
BASE = """
def function(a): ...
class Base:
    inherited: int
    def base_method(self): ...
"""

HOLDS = [
    uses("fake.mod", "CONSTANT"),
    uses("fake.mod", "aliased"),
    uses("fake.mod", "foreign"),
    uses("fake.mod", "base"),
    uses("fake.mod", "Base.inherited"),
    calls("fake.mod", "renamed", "a"),
    overrides("fake.mod", "Relative.base_method", "self"),
    uses("fake.mod", "Child.Inner.x"),
    uses("fake.mod", "absent", since=(0, 34)),
    uses("fake.mod", "absent", until=(0, 33)),
    calls("fake.mod", "conditional", "a"),
    calls("fake.mod", "plain", "a", "b", "d"),
    calls("fake.mod", "open_ended", "a", "whatever"),
    overrides("fake.mod", "Child.method", "self", "x"),
    overrides("fake.mod", "Child.base_method", "self"),
    kernel("fake.mod", "conditional", "a", "b"),
    has_fields("fake.mod", "Child", "declared", "assigned", "inherited"),
]
BROKEN = [
    (uses("fake.mod", "absent"), "does not exist"),
    (uses("fake.gone", "x"), "module that does not exist"),
    (uses("fake.mod", "Gone.x"), "class Gone"),
    (calls("fake.mod", "plain", "a", "b"), "now requires d"),
    (calls("fake.mod", "plain", "a", "b", "d", "e"), "no parameter e"),
    (calls("fake.mod", "CONSTANT", "a"), "not a function"),
    (overrides("fake.mod", "Child.method", "self"), "takes (self, x), expected (self)"),
    (kernel("fake.mod", "conditional", "b", "a"), "takes (a, b), expected (b, a)"),
    (has_fields("fake.mod", "Child", "declared", "nothing"), "no field nothing"),
    (has_fields("fake.mod", "Gone", "x"), "does not exist"),
]
# Only the source shows where an imported name came from.
BROKEN_IMPORTS = [
    (uses("fake.mod", "gone"), "does not exist"),
    (calls("fake.mod", "renamed", "b"), "no parameter b"),
]


@pytest.fixture
def root(tmp_path):
    package = tmp_path / "fake"
    package.mkdir()
    (package / "mod.py").write_text(IMPORTS + SOURCE)
    (package / "base.py").write_text(BASE)
    return tmp_path


@pytest.mark.parametrize("symbol", HOLDS, ids=str)
def test_source_check_accepts_what_holds(root, symbol):
    assert check_source([symbol], root, (0, 33)) == []


@pytest.mark.parametrize(("symbol", "words"), BROKEN + BROKEN_IMPORTS, ids=str)
def test_source_check_names_what_broke(root, symbol, words):
    (problem,) = check_source([symbol], root, (0, 33))
    assert str(symbol) in problem
    assert words in problem


@pytest.mark.parametrize(("symbol", "words"), BROKEN, ids=str)
def test_start_check_names_what_broke(monkeypatch, symbol, words):
    """The same verdicts on live modules, but for what only source text shows."""
    for name, text in (("fake.base", BASE), ("fake.mod", SOURCE)):
        module = types.ModuleType(name)
        module.__spec__ = importlib.util.spec_from_loader(name, None)
        monkeypatch.setitem(sys.modules, name, module)
        exec(text, module.__dict__)
    problems = check_loaded([symbol], "0.33.0")
    only_in_source = symbol.form in ("fields", "kernel") or symbol.module == "fake.gone"
    if only_in_source:
        assert problems == []
    else:
        (problem,) = problems
        assert str(symbol) in problem
