"""`make check-release` names what a release of vLLM has not that this package relies on.

Claim: of a source tree it names each symbol that is gone or other, each kernel nobody provides for
and each difference that no longer shows, and nothing that is as expected; a tree that is there is
not fetched again. If this breaks, the next release is found out about in a server that ends.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest
from upstream_sources import FETCHED_TAGS, REPOSITORY, fetched_folder

PACKAGING = REPOSITORY / "packaging"
NEXT = "0.34.0"
FILES = {
    "triton_utils/dispatcher.py": """
        class KernelOverride:
            def __init__(self): self._impl = self.arg_names = self.func = None
            def __getitem__(self, grid): ...
        def register_kernels(overrides, *, scope): ...
    """,
    "utils/math_utils.py": "from vllm.utils.numbers import next_power_of_2\n",
    "utils/numbers.py": "def next_power_of_2(n): ...\n",
    "config/speculative.py": "def needs_eagle_block_drop(): ...\n",
    "v1/worker/gpu/later.py": """
        @triton.jit
        def _new_kernel(pointer): ...
        def launch(): _new_kernel[(1,)](0)
    """,
    "v1/worker/gpu/input_batch.py": """
        @triton.jit
        def _post_update_kernel(other): ...
    """,
}
PROBLEMS = (
    "vllm.triton_utils.dispatcher:register_kernels now requires scope",
    "vllm.v1.engine.core:DPEngineCoreProc is in a module that does not exist",
    "vllm.v1.worker.gpu.input_batch:_post_update_kernel takes (other), expected (",
    "vllm.v1.worker.gpu.later._new_kernel is a kernel that is launched",
    "vllm.v1.worker.gpu_worker no longer has 'not HAS_TRITON'",
    f"vLLM {NEXT}, not in the table of releases: ",
)
AS_EXPECTED = ("KernelOverride", "next_power_of_2", "needs_eagle_block_drop")


@pytest.fixture
def script(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(PACKAGING), *sys.path])
    return runpy.run_path(str(PACKAGING / "check_release.py"))


@pytest.fixture
def cache(tmp_path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / f"vllm-{NEXT}-src" / "vllm" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(line.removeprefix("        ") for line in text.splitlines()))
    return tmp_path


def test_what_a_source_tree_lacks_is_named(script, cache, capsys):
    assert script["main"]([NEXT], cache) == 1
    said = capsys.readouterr().out
    for problem in PROBLEMS:
        assert any(line.startswith(problem) for line in said.splitlines()), problem
    for name in AS_EXPECTED:
        assert name not in said
    assert f"{len(said.splitlines()) - 1} things" in said


@pytest.mark.parametrize("tag", FETCHED_TAGS)
def test_a_supported_release_has_all(script, tag, capsys):
    assert script["main"]([tag], fetched_folder(tag).parent) == 0
    assert capsys.readouterr().out == f"vLLM {tag}, in the table of releases: all is as expected\n"


def test_a_source_tree_is_fetched_where_there_is_none(script, tmp_path, capsys):
    asked = []

    def fetch(tag, folder):
        asked.append((tag, folder))
        (folder / "vllm").mkdir(parents=True)

    script["main"].__globals__["fetch"] = fetch
    assert script["main"]([NEXT], tmp_path) == 1
    assert script["main"]([NEXT], tmp_path) == 1
    assert asked == [(NEXT, tmp_path / f"vllm-{NEXT}-src")]


@pytest.mark.parametrize(("arguments", "words"), [([], "VERSION="), (["dev"], "'dev' is not a")])
def test_what_names_no_release_is_refused(script, arguments, words, tmp_path, capsys):
    assert script["main"](arguments, tmp_path) == 2
    assert words in capsys.readouterr().err
