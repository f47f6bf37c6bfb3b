"""Runs what needs the device in processes of its own: it changes torch for good."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

TESTS = Path(__file__).parents[1]
TIMEOUT_S = 600


def environment(**changes: str) -> dict[str, str]:
    """That of a process which can import `fake_npu` and computes on one core."""
    path = os.pathsep.join(filter(None, (str(TESTS), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **changes}


def python(arguments: Sequence[str], changes: Mapping[str, str] | None = None) -> str:
    """Standard output of a Python process.

    Raises:
        AssertionError: it failed; says what it printed last.
    """
    done = subprocess.run(
        [sys.executable, *arguments],
        env=environment(**(changes or {})),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, f"{arguments}:\n{done.stdout[-20000:]}\n{done.stderr[-20000:]}"
    return done.stdout
