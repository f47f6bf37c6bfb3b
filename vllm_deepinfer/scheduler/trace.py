"""A line per step, for people who ask why a step was what it was, or whether ranks agreed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


class StepTrace:
    """Appends JSON lines to a file, each at once, so that it can be read after a crash."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8")

    def write(self, **fields: Any) -> None:
        """Write one line; field by field what is given."""
        self._file.write(json.dumps(fields) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()
