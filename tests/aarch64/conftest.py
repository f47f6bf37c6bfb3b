"""Replays on ARM64: only for `make test-aarch64`, which builds and records what they need."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

FOLDER = os.environ.get("AARCH64_FOLDER")
collect_ignore_glob = [] if FOLDER else ["test_*.py"]

Replay = Callable[..., dict[str, Any]]


@pytest.fixture(scope="session")
def place():
    from aarch64.sysroot import Sysroot

    return Sysroot(Path(FOLDER))


@pytest.fixture(scope="session")
def replay(place, tmp_path_factory) -> Replay:
    """``replay(name)`` gives the tally of an extension's cases, of each once."""
    known: dict[tuple, dict[str, Any]] = {}

    def run(name: str, extensions: Path | None = None, lives: int | None = None) -> dict[str, Any]:
        key = name, extensions, lives
        if key not in known:
            result = tmp_path_factory.mktemp("replay") / "result.json"
            place.run(
                "-m", "aarch64.replay",
                "--extensions", extensions or place.folder / "extensions",
                "--cases", place.folder / "cases" / f"{name}.pickle",
                "--result", result,
                *(("--lives", str(lives)) if lives else ()),
            )  # fmt: skip
            known[key] = json.loads(result.read_text())
        return known[key]

    return run


def recorded_counts(name: str) -> dict[str, int]:
    """Calls recorded of each operation of an extension."""
    return json.loads((Path(FOLDER) / "cases" / "counts.json").read_text())[name]
