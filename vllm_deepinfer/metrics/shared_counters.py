"""Counters in a small memory-mapped file, written by one process and read by another.

The engine core counts; the API server shows. vLLM carries only its own statistics between them, so
the counters live in a file both can name: the instance id of their common configuration. A value is
one aligned float64, which a reader sees whole.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np

PREFIX = "vllm-deepinfer-counters-"


def counter_file(instance_id: str, data_parallel_rank: int) -> Path:
    """Where the engine core of a rank keeps its counters."""
    folder = several_servers_folder()
    if folder is not None:
        # Each of several API servers makes a configuration, and so an instance id, of its own.
        return folder / f"{PREFIX}{data_parallel_rank}"
    return Path(tempfile.gettempdir()) / f"{PREFIX}{instance_id}-{data_parallel_rank}"


def several_servers_folder() -> Path | None:
    """The folder that vLLM's API servers share where there are several; it ends with them."""
    folder = os.environ.get("PROMETHEUS_MULTIPROC_DIR")
    return None if folder is None else Path(folder)


class SharedCounters:
    """Named float64 counters backed by a file.

    Args:
        path: the file.
        names: the counters, in the same order for writer and reader.
        create: make the file and set every counter to zero; otherwise it must exist.
    """

    def __init__(self, path: Path, names: Iterable[str], create: bool) -> None:
        self.path = path
        self._index = {name: number for number, name in enumerate(names)}
        size = 8 * max(len(self._index), 1)
        flags = os.O_RDWR | os.O_NOFOLLOW | (os.O_CREAT | os.O_TRUNC if create else 0)
        descriptor = os.open(path, flags, 0o600)
        try:
            if create:
                os.ftruncate(descriptor, size)
            elif os.fstat(descriptor).st_size != size:
                raise ValueError(
                    f"{path} has {os.fstat(descriptor).st_size} bytes, not the {size} of "
                    f"{len(self._index)} counters; writer and reader are of different versions."
                )
            self._map = mmap.mmap(descriptor, size)
        finally:
            os.close(descriptor)
        self._values = np.frombuffer(self._map, dtype=np.float64)

    def add(self, name: str, amount: float = 1.0) -> None:
        self._values[self._index[name]] += amount

    def set(self, name: str, value: float) -> None:
        self._values[self._index[name]] = value

    def slice(self, first: str, count: int) -> np.ndarray:
        """View of ``count`` counters from ``first`` on, float64; writing to it counts."""
        start = self._index[first]
        return self._values[start : start + count]

    def __getitem__(self, name: str) -> float:
        return float(self._values[self._index[name]])

    def remove(self) -> None:
        """Delete the file; values stay readable through open maps."""
        self.path.unlink(missing_ok=True)
