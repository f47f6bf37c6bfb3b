"""A stand-in satisfies a requirement and brings nothing; the page tells why each is there.

Claim: pip installs every stand-in, finds its version and not one file of a module; the table in
docs/install.md is that of the package; beside a build of torch with CUDA's libraries only what does
not load is replaced. If this breaks, vLLM imports a half package, or a user cannot learn why.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from vllm_deepinfer.installation.stand_ins import STAND_INS, stand_ins, write_wheel

INSTALL_PAGE = (Path(__file__).parents[2] / "docs" / "install.md").read_text()


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    wheels, target = tmp_path_factory.mktemp("wheels"), tmp_path_factory.mktemp("target")
    paths = [write_wheel(stand_in, wheels) for stand_in in STAND_INS]
    command = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--target"]
    subprocess.run([*command, target, *paths], check=True, capture_output=True)
    return target


def test_pip_takes_them_and_nothing_is_in_them(installed):
    import importlib.metadata

    found = {d.name: d for d in importlib.metadata.distributions(path=[str(installed)])}
    assert {name: d.version for name, d in found.items()} == {s.name: s.version for s in STAND_INS}
    assert all(path.name.endswith(".dist-info") for path in installed.iterdir())


@pytest.mark.parametrize("stand_in", STAND_INS, ids=lambda s: s.name)
def test_the_page_explains_each(stand_in):
    row = f"| `{stand_in.name}` {stand_in.version} | {stand_in.why} | {stand_in.remove_when} |"
    assert row in INSTALL_PAGE


def test_beside_a_general_build_only_what_does_not_load_is_replaced():
    assert stand_ins(True) == STAND_INS
    assert [s.name for s in stand_ins(False)] == ["vllm"]
