"""What is installed is what the repository says.

Claim: both entry points carry one name and lead to this package; the version is one everywhere; C++
sources are built when there are some and never stop an installation. (`make install` itself stops
unless versions fit and doctor finds no error.) If this breaks, a fresh clone does not start.
"""

from __future__ import annotations

import importlib.metadata
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import vllm_deepinfer

REPOSITORY = Path(__file__).parents[2]


def run(*arguments, cwd=REPOSITORY):
    return subprocess.run(arguments, cwd=cwd, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("group", "value"),
    [
        ("vllm.platform_plugins", "vllm_deepinfer:platform"),
        ("vllm.general_plugins", "vllm_deepinfer:register"),
        ("console_scripts", "vllm_deepinfer.cli:main"),
    ],
)
def test_entry_points(group, value):
    name = "vllm-deepinfer" if group == "console_scripts" else "deepinfer"
    (point,) = importlib.metadata.entry_points(group=group, name=name)
    assert point.value == value
    assert callable(point.load())


def test_one_version():
    assert importlib.metadata.version("vllm-deepinfer") == vllm_deepinfer.__version__


PROJECT = """
[project]
name = "probe"
version = "0"
[tool.setuptools.packages.find]
include = ["vllm_deepinfer*"]
"""
GOOD = """
#include <Python.h>
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_probe", nullptr, -1, nullptr};
PyMODINIT_FUNC PyInit__probe() { return PyModule_Create(&definition); }
"""


@pytest.mark.parametrize(("source", "built"), [(GOOD, True), ("not C++", False)])
def test_sources_are_built_and_never_required(tmp_path, source, built):
    shutil.copy(REPOSITORY / "setup.py", tmp_path)
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    (tmp_path / "vllm_deepinfer").mkdir()
    probe = tmp_path / "csrc" / "probe" / "probe.cpp"
    probe.parent.mkdir(parents=True)
    probe.write_text(source)
    result = run(sys.executable, "setup.py", "build_ext", "--inplace", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert bool(list(tmp_path.glob("vllm_deepinfer/_probe*.so"))) is built
