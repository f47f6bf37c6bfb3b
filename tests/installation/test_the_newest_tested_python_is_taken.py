"""`packaging/with_python.sh` finds an interpreter, or says in a sentence why there is none.

Claim: the newest tested Python on the path runs the program and is told of all others, newest
first; names that do not run are passed by; one that is given or found alone and was not tested ends
with a sentence; the releases are those of pyproject.toml and of the package. If this breaks, people
install on a Python on which nothing was tried, or on none though theirs is fine.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from vllm_deepinfer.installation import TESTED_PYTHONS

REPOSITORY = Path(__file__).parents[2]
SCRIPT = REPOSITORY / "packaging" / "with_python.sh"
NAMES = [f"{major}.{minor}" for major, minor in TESTED_PYTHONS]


def interpreter(folder: Path, name: str, version: str | None) -> Path:
    """A program that answers as an interpreter of this version; None: one that does not run."""
    path = folder / name
    answer = f"""[ "$1" = -c ] && echo {version} || printf '%s\\n' "$0" "$@" """
    path.write_text("#!/bin/sh\n" + ("exit 127" if version is None else answer) + "\n")
    path.chmod(0o755)
    return path


def run(folder: Path, asked: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [shutil.which("sh"), SCRIPT, asked, "-m", "program"],
        env={"PATH": str(folder)},
        capture_output=True,
        text=True,
    )


def test_the_newest_runs_and_hears_of_the_others(tmp_path):
    for name in ("3.11", "3.13"):
        interpreter(tmp_path, f"python{name}", name)
    interpreter(tmp_path, "python3.12", None)
    interpreter(tmp_path, "python3", "3.10")
    words = run(tmp_path).stdout.splitlines()
    found = [str(tmp_path / f"python{name}") for name in ("3.13", "3.11")]
    assert words == [
        found[0],
        "-m",
        "program",
        "--interpreter",
        found[0],
        "--interpreter",
        found[1],
    ]


def test_one_that_is_named_is_the_only_one(tmp_path):
    interpreter(tmp_path, "python3.13", "3.13")
    path = interpreter(tmp_path, "mine", "3.11")
    words = run(tmp_path, str(path)).stdout.splitlines()
    assert words == [str(path), "-m", "program", "--interpreter", str(path)]


def test_python3_will_do_if_it_was_tested(tmp_path):
    path = interpreter(tmp_path, "python3", "3.12")
    assert run(tmp_path).stdout.splitlines()[-1] == str(path)


@pytest.mark.parametrize(
    ("name", "version", "asked", "words"),
    [
        ("python3", "3.10", "", ["python3 is Python 3.10"]),
        ("python3", "2.7", "", ["python3 is Python 2.7"]),
        ("python", "3.12", "", ["No Python 3"]),
        ("old", "3.9", "old", ["PYTHON=old is Python 3.9"]),
        ("python3.12", "3.12", "python3.14", ["PYTHON=python3.14 does not run"]),
    ],
)
def test_what_was_not_tested_is_refused_in_a_sentence(tmp_path, name, version, asked, words):
    interpreter(tmp_path, name, version)
    result = run(tmp_path, asked)
    assert result.returncode == 1 and not result.stdout
    for word in [*words, *NAMES, "PYTHON=python3.12"]:
        assert word in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_all_places_name_the_same_releases():
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    oldest, newest = TESTED_PYTHONS[0], TESTED_PYTHONS[-1]
    assert project["requires-python"] == f">=3.{oldest[1]},<3.{newest[1] + 1}"
    listed = [c.split(" :: ")[-1] for c in project["classifiers"] if re.search(r":: 3\.\d+$", c)]
    assert listed == NAMES
    assert f'tested="{" ".join(reversed(NAMES))}"' in SCRIPT.read_text()
    assert sys.version_info[:2] in TESTED_PYTHONS
