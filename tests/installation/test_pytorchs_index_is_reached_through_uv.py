"""The second way to torch, end to end: the real uv, and an index on loopback in its host's place.

Claim: where PyTorch's index has the build, it is installed from there and nothing else is asked;
where it has not, does not answer, or is not reached, a line says so and the next way is free. If
this breaks, users without a prepared pip download gigabytes, or wait for minutes.
"""

from __future__ import annotations

import shutil
import socket
import sys
from pathlib import Path

import pytest
from installation.loopback_index import HOST, serve

from vllm_deepinfer.installation import torch_builds
from vllm_deepinfer.installation.environment import Environment
from vllm_deepinfer.installation.stand_ins import StandIn, write_wheel
from vllm_deepinfer.installation.torch_builds import CPU_VERSION

UV = Path(sys.executable).with_name("uv")


@pytest.fixture
def environment(tmp_path, monkeypatch):
    """An empty one, without pip, which uv does not need."""
    import venv

    venv.create(tmp_path / "venv", with_pip=False)
    monkeypatch.setenv("PATH", f"{UV.parent}:/usr/bin:/bin")
    monkeypatch.setattr(torch_builds.shutil, "which", lambda name: str(UV))
    return Environment(tmp_path / "venv" / "bin" / "python")


def wheels(folder: Path, version: str) -> Path:
    folder.mkdir()
    write_wheel(StandIn("torch", version, "cpu", "stands for the build", "never"), folder)
    return folder


def install(environment, variables, monkeypatch, capsys):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    installed = torch_builds._install_with_uv(environment)
    return installed, capsys.readouterr().out


def test_the_build_comes_from_there_alone(environment, tmp_path, monkeypatch, capsys):
    with serve(wheels(tmp_path / "wheels", CPU_VERSION), tmp_path) as (index, variables):
        installed, said = install(environment, variables, monkeypatch, capsys)
    assert installed and "found in PyTorch's index" in said
    assert environment.distributions()["torch"][0] == CPU_VERSION
    assert len(set(index.asked)) == 1, "one host has it; no other is asked"


def test_without_the_build_a_line_says_so(environment, tmp_path, monkeypatch, capsys):
    with serve(wheels(tmp_path / "wheels", "2.12.0+cpu"), tmp_path) as (index, variables):
        installed, said = install(environment, variables, monkeypatch, capsys)
    assert not installed and index.asked and "not in PyTorch's index, or no answer" in said
    assert "torch" not in environment.distributions()


def test_no_connection_ends_at_once(environment, monkeypatch, capsys):
    with socket.create_server((HOST, 0)) as closed:
        port = closed.getsockname()[1]
    variables = {"HTTPS_PROXY": f"http://{HOST}:{port}", "UV_HTTP_RETRIES": "0"}
    installed, said = install(environment, variables, monkeypatch, capsys)
    assert not installed and said.count("\n") == 1


def test_silence_ends_after_the_limit(environment, monkeypatch, capsys):
    monkeypatch.setattr(torch_builds, "UV_ANSWER_LIMIT_S", 1.0)
    with socket.create_server((HOST, 0)) as silent:
        variables = {"HTTPS_PROXY": f"http://{HOST}:{silent.getsockname()[1]}"}
        installed, said = install(environment, variables, monkeypatch, capsys)
    assert not installed and "did not answer in 1 s" in said


def test_uv_is_the_one_that_the_tests_installed():
    assert shutil.which(str(UV))
