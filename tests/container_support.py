"""Runs commands as they would run in a container, and checks that they did."""

from __future__ import annotations

import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

CONTAINER_SHM_BYTES = 64 << 20


def with_shared_memory(size_bytes: int) -> list[str]:
    """A command that runs the one after it with an empty /dev/shm of that size."""
    script = f'mount -t tmpfs -o size={size_bytes} tmpfs /dev/shm && exec "$0" "$@"'
    return ["unshare", "--mount", "sh", "-c", script]


@cache
def why_no_namespaces() -> str | None:
    """What keeps `with_shared_memory` from running here; None if it runs."""
    if shutil.which("unshare") is None:
        return "there is no unshare"
    run = subprocess.run(
        [*with_shared_memory(CONTAINER_SHM_BYTES), "true"], capture_output=True, text=True
    )
    return None if run.returncode == 0 else run.stderr.strip()


def as_in_a_container() -> list[str]:
    """A command that gives the one after it a container's /dev/shm, where that can be had."""
    return [] if why_no_namespaces() else with_shared_memory(CONTAINER_SHM_BYTES)


def assert_in_a_container(server) -> None:
    """Fails if the server has a larger /dev/shm; skips where it cannot have one of its own."""
    reason = why_no_namespaces()
    if reason is not None:
        pytest.skip(f"no /dev/shm of its own: {reason}")
    folder = Path(f"/proc/{server.process.pid}/root/dev/shm")
    assert shutil.disk_usage(folder).total == CONTAINER_SHM_BYTES
    words = "/dev/shm has 64 MiB free: the message rings of"
    assert sum(words in line for line in server.lines()) == 1
