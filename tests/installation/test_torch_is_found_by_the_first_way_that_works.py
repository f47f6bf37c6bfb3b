"""torch comes by the first way that works, a line is said for each, and a forced way is kept.

Claim: a build for CPUs that pip finds as configured is taken without asking anywhere else; then
PyTorch's index through uv; then the general registry, whose size is said and whose space is there;
no way ends in one sentence. If this breaks, an install that needs 0.2 GB takes 5, or ends in
"No matching distribution found".
"""

from __future__ import annotations

import pytest

from vllm_deepinfer.installation import TORCH_VERSION, InstallationError, torch_builds
from vllm_deepinfer.installation.torch_builds import (
    CPU_BUILD,
    CPU_VERSION,
    GENERAL_BUILD,
    choose,
    parse_choice,
)


class Offers:
    """An environment whose index has these versions of torch; remembers what it was asked."""

    def __init__(self, *versions: str, installed: str | None = None, python=None) -> None:
        self.versions, self.installed, self.asked, self.python = versions, installed, [], python

    def distributions(self):
        return {"torch": (self.installed, [])} if self.installed else {}

    def offers(self, name, version):
        self.asked.append(version)
        return version in self.versions


@pytest.fixture
def uv(monkeypatch):
    """Whether PyTorch's index has the build, and whether it was asked."""
    answers = {"has": False, "asked": 0}

    def install(environment):
        answers["asked"] += 1
        return answers["has"]

    monkeypatch.setattr(torch_builds, "_install_with_uv", install)
    return answers


@pytest.fixture(autouse=True)
def large_disk(monkeypatch):
    monkeypatch.setattr(torch_builds, "_require_disk", lambda environment, build: None)


def test_the_configured_build_is_taken_and_nobody_else_asked(uv, capsys):
    environment = Offers(CPU_VERSION, TORCH_VERSION)
    assert choose(environment, None) is CPU_BUILD
    assert environment.asked == [CPU_VERSION] and uv["asked"] == 0
    assert capsys.readouterr().out.count("\n") == 1


def test_pytorchs_index_is_second(uv, capsys):
    uv["has"] = True
    environment = Offers(TORCH_VERSION)
    assert choose(environment, None) is CPU_BUILD
    assert environment.asked == [CPU_VERSION]
    assert "not found, as pip is configured" in capsys.readouterr().out


def test_the_general_registry_is_third_and_its_size_is_said_first(uv, capsys):
    assert choose(Offers(TORCH_VERSION), None) is GENERAL_BUILD
    said = capsys.readouterr().out
    assert uv["asked"] == 1 and "2.5 GB" in said and "4.7 GB" in said


@pytest.mark.parametrize(
    ("forced", "offered", "asked"),
    [("cpu", (TORCH_VERSION,), 1), ("pypi", (CPU_VERSION,), 0), (None, (), 1)],
)
def test_no_way_ends_in_a_sentence(uv, forced, offered, asked):
    with pytest.raises(InstallationError, match=f"No build of torch {TORCH_VERSION}") as raised:
        choose(Offers(*offered), forced)
    assert uv["asked"] == asked and str(raised.value).count("\n") == 0


def test_forced_ways_are_kept(uv):
    assert choose(Offers(CPU_VERSION, TORCH_VERSION), "pypi") is GENERAL_BUILD
    assert choose(Offers(CPU_VERSION, TORCH_VERSION), "cpu") is CPU_BUILD
    assert uv["asked"] == 0


@pytest.mark.parametrize(
    ("installed", "forced", "build"),
    [
        (CPU_VERSION, None, CPU_BUILD),
        (f"{TORCH_VERSION}+cu130", None, GENERAL_BUILD),
        (TORCH_VERSION, "pypi", GENERAL_BUILD),
    ],
)
def test_what_is_installed_stays(uv, installed, forced, build):
    environment = Offers(installed=installed)
    assert choose(environment, forced) is build and environment.asked == []


def test_another_release_or_build_is_replaced(uv):
    assert choose(Offers(CPU_VERSION, installed="2.12.0+cpu"), None) is CPU_BUILD
    assert choose(Offers(CPU_VERSION, installed=TORCH_VERSION), "cpu") is CPU_BUILD


def test_a_wrong_choice_names_the_value_and_the_allowed_ones():
    assert parse_choice("") is None and parse_choice("cpu") == "cpu"
    with pytest.raises(InstallationError, match="TORCH=gpu is not allowed: cpu .* pypi"):
        parse_choice("gpu")


def test_too_small_a_disk_is_said_before_the_download(monkeypatch, tmp_path):
    monkeypatch.undo()
    from vllm_deepinfer.installation.environment import Environment

    disk = type("Usage", (), {"free": GENERAL_BUILD.free_bytes - 1})
    monkeypatch.setattr(torch_builds.shutil, "disk_usage", lambda folder: disk)
    with pytest.raises(InstallationError, match=r"10\.0 GiB are needed"):
        torch_builds._require_disk(Environment(tmp_path / "bin" / "python"), GENERAL_BUILD)
