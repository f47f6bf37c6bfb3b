"""Asks `vllm-deepinfer doctor` why a server does not start on this machine.

Standard library only.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

from server import command, tail


class DoctorError(RuntimeError):
    """Doctor could not look at this machine."""


def explain(model: Path, arguments: Sequence[str], log: Path, reason: str) -> str:
    """Why `vllm serve MODEL ARGUMENTS` did not start, for a person to read.

    Doctor's errors and warnings; the end of the log where doctor finds no error.

    Args:
        log: what the server wrote; may be absent.
        reason: what was seen of the server, in one sentence.
    """
    lines = [f"The server did not start: {reason} Its log is {log}."]
    try:
        findings = doctors_findings(model, arguments)
    except DoctorError as problem:
        return "\n".join([*lines, str(problem), tail(log)])
    if findings:
        lines.append("What `vllm-deepinfer doctor` finds wrong with this machine and model:")
    for finding in findings:
        lines.append(f"{finding['level']}: {finding['message']}")
        if finding["fix"]:
            lines.append(f"  {finding['fix']}")
    if not any(finding["level"] == "error" for finding in findings):
        lines += ["`vllm-deepinfer doctor` finds no error on this machine.", tail(log)]
    return "\n".join(lines)


def doctors_findings(model: Path, arguments: Sequence[str]) -> list[dict[str, str]]:
    """Errors and warnings, errors first.

    Raises:
        DoctorError: doctor gave no report; quotes the last line it wrote.
    """
    argv = [command("vllm-deepinfer"), "doctor", str(model), *arguments, "--json"]
    try:
        run = subprocess.run(argv, capture_output=True, text=True)
        findings = json.loads(run.stdout)["findings"]
    except OSError as problem:
        raise DoctorError(f"vllm-deepinfer doctor cannot be run: {problem}.") from problem
    except ValueError as problem:
        last = (run.stderr.strip().splitlines() or ["nothing"])[-1]
        raise DoctorError(f"vllm-deepinfer doctor gave no report, but: {last}") from problem
    return [f for level in ("error", "warning") for f in findings if f["level"] == level]
