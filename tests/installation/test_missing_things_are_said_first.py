"""What a machine lacks is said in a sentence before anything is made or downloaded.

Claim: each prerequisite, hidden alone on an otherwise sound machine, ends `make install`'s program
with a sentence that names it and the packages that bring it, within ten seconds, without a network
and before a folder is made; without a compiler the installation goes on and says what that costs.
If this breaks, people download gigabytes and then read a traceback.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
import sysconfig
import time
from dataclasses import replace
from pathlib import Path

import pytest

from vllm_deepinfer.doctor.findings import Level
from vllm_deepinfer.installation import prerequisites
from vllm_deepinfer.installation.prerequisites import GIB, check_prerequisites, look

REPOSITORY = Path(__file__).parents[2]
STDLIB = Path(sysconfig.get_paths()["stdlib"])
HEADERS = Path(sysconfig.get_paths()["include"])
BASE = Path(getattr(sys, "_base_executable", sys.executable))
LIMIT_S = 10.0
# In namespaces of its own: what is hidden is hidden there alone, and there is no network.
APART = ["unshare", "--mount", "--net"]
CAN_HIDE = shutil.which("unshare") and not subprocess.run([*APART, "true"]).returncode


def quote(path: Path) -> str:
    return shlex.quote(str(path))


def libnuma() -> Path:
    listed = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True).stdout
    return next(
        Path(line.split()[-1]).resolve() for line in listed.splitlines() if "libnuma.so.1" in line
    )


# name -> (commands that hide it, words of the sentence)
def hidden(tmp_path: Path) -> dict[str, tuple[list[str], list[str]]]:
    empty, file = tmp_path / "empty", tmp_path / "file"
    empty.mkdir()
    file.touch()
    small = tmp_path / "small"
    small.mkdir()
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    return {
        "venv": (
            [f"mount --bind {quote(empty)} {quote(STDLIB / 'ensurepip')}"],
            ["ensurepip", f"python{version}-venv", "Fedora"],
        ),
        "headers": (
            [f"mount --bind {quote(empty)} {quote(HEADERS)}"],
            ["Python.h", f"python{version}-dev", f"python{version}-devel"],
        ),
        "libnuma": (
            [f"mount --bind {quote(file)} {quote(libnuma())}"],
            ["libnuma.so.1", "libnuma1", "numactl-libs"],
        ),
        "disk": (
            [f"mount -t tmpfs -o size=1m tmpfs {quote(small)}", f"export TMPDIR={quote(small)}"],
            ["disk space", "4.0 GiB", "TMPDIR"],
        ),
        "compiler asked for": (
            ["export CXX=no-such-compiler"],
            ["CXX=no-such-compiler", "g++", "gcc-c++", "CXX=none"],
        ),
        "system": (["set -- setarch i686"], ["Linux i686", "Linux x86_64"]),
    }


NAMES = ("venv", "headers", "libnuma", "disk", "compiler asked for", "system")


@pytest.mark.skipif(not CAN_HIDE, reason="namespaces are not allowed here")
@pytest.mark.parametrize("name", NAMES)
def test_each_missing_thing_ends_with_its_sentence(tmp_path, name):
    commands, words = hidden(tmp_path)[name]
    target = tmp_path / "environment"
    program = (
        f'exec "$@" sh packaging/with_python.sh {quote(BASE)} '
        f"-m vllm_deepinfer.installation {quote(target)}"
    )
    began = time.monotonic()
    result = subprocess.run(
        [*APART, "sh", "-ec", "\n".join([*commands, program])],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert time.monotonic() - began < LIMIT_S
    assert result.returncode == 1, result.stdout + result.stderr
    for word in words:
        assert word in result.stderr
    assert "Traceback" not in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1, (
        "one thing is missing, one sentence is said"
    )
    assert not target.exists() and "Downloading" not in result.stdout


def test_names_cover_what_is_hidden(tmp_path):
    if CAN_HIDE:
        assert tuple(hidden(tmp_path)) == NAMES


@pytest.fixture(scope="module")
def facts():
    return look(REPOSITORY, {})


def test_this_machine_lacks_nothing(facts):
    assert check_prerequisites(facts) == []


@pytest.mark.parametrize(
    ("asked", "level"),
    [(None, Level.WARNING), ("none", Level.WARNING), ("g++-1", Level.ERROR)],
)
def test_without_a_compiler_it_goes_on_unless_one_was_named(facts, asked, level):
    (finding,) = check_prerequisites(
        replace(facts, compiler=None, has_headers=False, asked_compiler=asked)
    )
    assert (finding.check, finding.level) == ("compiler", level)
    assert "many times slower" in finding.message or asked in finding.message


def test_an_empty_path_has_no_compiler(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    found = look(REPOSITORY, {})
    assert found.compiler is None
    assert [f.level for f in check_prerequisites(found)] == [Level.WARNING]


@pytest.mark.parametrize("python", [(3, 10), (3, 14)])
def test_an_untested_python_is_named_with_the_tested_ones(facts, python):
    (finding,) = check_prerequisites(replace(facts, python=python))
    assert finding.level is Level.ERROR
    for word in (f"{python[0]}.{python[1]}", "3.11", "3.12", "3.13", "PYTHON="):
        assert word in finding.message


def test_every_check_is_tried_here():
    tried = {"system", "python", "venv", "libraries", "compiler", "headers", "disk"}
    assert {check.__name__ for check in prerequisites.CHECKS} == tried


def test_space_is_counted_where_it_is_used(facts):
    assert (
        prerequisites.disk_finding({"/a": 5 * GIB, "/b": 3 * GIB}, 4 * GIB).message.count("/b") == 1
    )
    assert prerequisites.disk_finding({"/a": 4 * GIB}, 4 * GIB) is None
    assert set(facts.free_bytes) >= {str(REPOSITORY)}
