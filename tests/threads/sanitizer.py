"""Programs that the thread sanitizer watches."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

RACE = 66  # the status of a program of which a race was reported
REPORT = "WARNING: ThreadSanitizer"
# A child of a process with threads may start its own, which the sanitizer ends unasked.
OPTIONS = f"exitcode={RACE} halt_on_error=1 die_after_fork=0"
LONGEST_S = 900


def compiler() -> str:
    return os.environ.get("CXX", "g++")


def run(*command: str | Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a program that was compiled for the sanitizer, or that loads what was."""
    return subprocess.run(
        command,
        env=os.environ | {"TSAN_OPTIONS": OPTIONS} | environ,
        capture_output=True,
        text=True,
        timeout=LONGEST_S,
    )


def assert_no_race(ran: subprocess.CompletedProcess[str]) -> None:
    assert ran.returncode == 0 and REPORT not in ran.stderr, ran.stdout + ran.stderr


def assert_race(ran: subprocess.CompletedProcess[Any]) -> None:
    assert ran.returncode == RACE and REPORT in ran.stderr, ran.stdout + ran.stderr
