"""Probes that measure in a process of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from serving import environment

_LOG_LINES = 30


def run_probe(script: Path, settings: dict[str, Any], folder: Path, threads: int) -> dict[str, Any]:
    """What ``script SETTINGS.json RESULT.json`` writes.

    Raises:
        SystemExit: its process failed; quotes the end of its log.
    """
    source, destination, log = (folder / f"probe.{suffix}" for suffix in ("in", "out", "log"))
    source.write_text(json.dumps(settings), encoding="utf-8")
    with log.open("wb") as output:
        code = subprocess.run(
            [sys.executable, str(script), str(source), str(destination)],
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment(True, threads),
        ).returncode
    if code != 0 or not destination.is_file():
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LOG_LINES:]
        sys.exit("\n".join([*lines, f"{script.name}: its process ended with {code}"]))
    return json.loads(destination.read_text(encoding="utf-8"))
