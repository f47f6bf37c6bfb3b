"""A demo that cannot serve ends in sentences that say why and what to do, not in a traceback.

Claim: if the server does not start, the demo prints doctor's errors and warnings for this machine
and model, where the log lies, and the log's end if doctor finds no error; a checkpoint that cannot
be made is a sentence too; the exit code is 1. If this breaks, the first thing a new user sees of a
machine that lacks something is fifty lines of Python.
"""

from __future__ import annotations

import ctypes
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from container_support import why_no_namespaces

EXAMPLES = Path(__file__).parents[2] / "examples"
MODULES = ("demo", "diagnosis", "server")


@pytest.fixture
def examples(monkeypatch):
    """The examples' modules by name, as they find each other when run."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    for name in MODULES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    found = {name: __import__(name) for name in MODULES}
    yield found
    for name in MODULES:
        sys.modules.pop(name, None)


def run_demo(folder, wrapper=(), **environ):
    script = [sys.executable, str(EXAMPLES / "demo.py"), str(folder)]
    variables = [f"{name}={value}" for name, value in environ.items()]
    run = subprocess.run(
        [*wrapper, "env", "-u", "VLLM_ENABLE_V1_MULTIPROCESSING", *variables, *script],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 1, run
    assert "Traceback" not in run.stdout + run.stderr
    return run.stderr


def without_libnuma() -> list[str]:
    """A command that runs the one after it where libnuma cannot be loaded."""
    ctypes.CDLL("libnuma.so.1")
    library = re.search(r"/\S*/libnuma\.so\S*", Path("/proc/self/maps").read_text())[0]
    script = f'mount --bind /dev/null {library} && exec "$0" "$@"'
    return ["unshare", "--mount", "sh", "-c", script]


def test_a_real_server_that_cannot_start(tiny_folder):
    """On a machine without libnuma, or else with a variable that doctor knows."""
    if why_no_namespaces() is None:
        said, cause = run_demo(tiny_folder, without_libnuma()), "libnuma1"
    else:
        said, cause = run_demo(tiny_folder, VLLM_USE_V2_MODEL_RUNNER="0"), "MODEL_RUNNER=0"
    log = tiny_folder.with_name(tiny_folder.name + "-server.log")
    first, *found = said.splitlines()
    assert first == f"The server did not start: vllm serve ended with 1. Its log is {log}."
    assert log.is_file()
    assert cause in "\n".join(found)
    assert "Last lines" not in said


@pytest.mark.parametrize("cause", ["a file in the way", "a full disk"])
def test_a_checkpoint_that_cannot_be_made(tmp_path, cause):
    wrapper, folder = (), tmp_path / "model"
    if cause == "a full disk":
        wrapper = ("sh", "-c", 'ulimit -f 8000 && exec "$0" "$@"')
    else:
        folder.write_text("")
    said = run_demo(folder, wrapper).splitlines()
    assert said[-1].startswith(f"No checkpoint was made in {folder}, for the reason above.")
    assert str(folder) in said[-2]
    assert sorted(tmp_path.iterdir()) == ([folder] if folder.exists() else [])


def test_an_environment_without_this_package(examples, monkeypatch, tmp_path):
    monkeypatch.setattr(examples["demo"], "command", lambda name: str(tmp_path / name))
    with pytest.raises(SystemExit, match="install vllm-deepinfer for"):
        examples["demo"].main(tmp_path / "model")


def test_an_environment_without_vllm(examples, monkeypatch, tmp_path, tiny_folder):
    monkeypatch.setattr(examples["server"], "command", lambda name: str(tmp_path / name))
    monkeypatch.setattr(examples["demo"], "explain", lambda *arguments: arguments[-1])
    with pytest.raises(SystemExit, match=f"No such file or directory: '{tmp_path}/vllm'"):
        examples["demo"].main(tiny_folder)


ERROR = {"check": "a", "level": "error", "message": "No room.", "fix": "Make some."}
WARNING = {"check": "b", "level": "warning", "message": "Slow.", "fix": ""}
NOTE = {"check": "c", "level": "note", "message": "Fine.", "fix": ""}


@pytest.fixture
def explain(examples, monkeypatch, tmp_path):
    """What is said of a failed start, with a doctor that runs a script."""
    doctor, log = tmp_path / "doctor", tmp_path / "server.log"
    log.write_text("\n".join(f"line {number}." for number in range(100)))
    monkeypatch.setattr(examples["diagnosis"], "command", lambda name: str(doctor))

    def make(script):
        if script is not None:
            doctor.write_text(f"#!/bin/sh\n{script}\n")
            doctor.chmod(0o755)
        said = examples["diagnosis"].explain(tmp_path, ["--flag"], log, "It ended.")
        first, *rest = said.splitlines()
        assert first == f"The server did not start: It ended. Its log is {log}."
        return rest

    return make


def reports(*findings):
    text = json.dumps({"findings": findings})
    return (
        f'test "$1 $3 $4" = "doctor --flag --json" && echo chatter >&2 && echo \'{text}\'; exit 1'
    )


def test_errors_come_first_with_their_fixes(explain):
    assert explain(reports(NOTE, WARNING, ERROR))[1:] == [
        "error: No room.",
        "  Make some.",
        "warning: Slow.",
    ]


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (reports(NOTE), "finds no error"),
        (reports(WARNING), "warning: Slow."),
        ("echo nonsense; echo it broke >&2", "gave no report, but: it broke"),
        ("exit 3", "gave no report, but: nothing"),
        (None, "cannot be run: "),
    ],
)
def test_the_log_speaks_where_doctor_cannot(explain, script, words):
    said = explain(script)
    assert any(words in line for line in said)
    assert said[-2:] == ["line 98.", "line 99."]
    assert "line 50." not in said
