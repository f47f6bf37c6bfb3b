"""Fits vLLM's message rings into /dev/shm, of which a container has 64 MiB unless told otherwise.

An engine and its worker talk through two rings of chunks: steps go out, results come back. vLLM's
default is 160 and 240 MiB for each rank, and it does not start where /dev/shm has less. Smaller
chunks serve as well: a message that does not fit in one goes over a socket instead.

Chunks of 1 MiB cost no speed: 1.07 and 0.99 of the default's tokens per second with one and eight
requests (medians of 16 turns in the same run; quarters at 1.00 to 1.21 and 0.90 to 1.14). The other
way, a worker inside the engine's process, needs no rings and 200 MiB less, but gives 0.95 and 0.94,
since nothing is then scheduled while a step computes.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vllm_deepinfer.log import get_logger, info_once

if TYPE_CHECKING:
    from vllm.config import VllmConfig

logger = get_logger(__name__)
CHUNK_MIB = "VLLM_MQ_MAX_CHUNK_BYTES_MB"
FOLDER = "dev/shm"
# vLLM's, for steps and for results.
DEFAULT_CHUNK_MIB = 16
DEFAULT_RESULT_CHUNK_MIB = 24
NUM_CHUNKS = 10
# A written and a read flag of each chunk.
_FLAG_BYTES = 2 * NUM_CHUNKS
# Pages are taken whole, and semaphores and locks lie beside the rings: 0.1 MiB seen.
_BESIDE_BYTES = 1 << 18
_MIB = 1 << 20


class SharedMemoryError(ValueError):
    """The message rings do not fit into /dev/shm."""


@dataclass(frozen=True)
class _Decision:
    """What was last decided: by which process, and what it wrote into the environment."""

    process: int
    written: str | None


_last: _Decision | None = None


def result_chunk_mib(step_chunk_mib: int | None) -> int:
    """MiB of a chunk for results where chunks for steps have `step_chunk_mib` (None: not set)."""
    if step_chunk_mib is None:
        return DEFAULT_RESULT_CHUNK_MIB
    return min(step_chunk_mib, DEFAULT_RESULT_CHUNK_MIB)


def ring_bytes(chunk_mib: int) -> int:
    """Bytes of one ring."""
    return NUM_CHUNKS * chunk_mib * _MIB + _FLAG_BYTES


def rank_bytes(chunk_mib: int | None) -> int:
    """Bytes that one rank takes of /dev/shm at most, with steps in chunks of `chunk_mib`."""
    steps_mib = DEFAULT_CHUNK_MIB if chunk_mib is None else chunk_mib
    return ring_bytes(steps_mib) + ring_bytes(result_chunk_mib(chunk_mib)) + _BESIDE_BYTES


def max_ranks(free_bytes: int) -> int:
    """How many ranks have room with the smallest chunks."""
    return free_bytes // rank_bytes(1)


def choose_chunk_mib(free_bytes: int, num_ranks: int, users_mib: int | None = None) -> int | None:
    """The chunk to set, in MiB: a user's, else the largest with which all ranks have room.

    None: nothing is to be set, since vLLM's defaults fit. A user's choice must pass vLLM's own
    check, which looks at one ring at a time: what is not written takes no memory.

    Raises:
        SharedMemoryError: it does not fit; names the bytes and what to change.
    """
    if users_mib is not None:
        if ring_bytes(users_mib) > free_bytes:
            raise SharedMemoryError(
                f"{shortage(free_bytes, num_ranks, users_mib)} {remedy(num_ranks)}"
            )
        return users_mib
    for chunk_mib in (None, *range(DEFAULT_CHUNK_MIB - 1, 0, -1)):
        if num_ranks * rank_bytes(chunk_mib) <= free_bytes:
            return chunk_mib
    raise SharedMemoryError(f"{shortage(free_bytes, num_ranks)} {remedy(num_ranks)}")


def shortage(free_bytes: int, num_ranks: int, users_mib: int | None = None) -> str:
    """The sentence that says what does not fit."""
    if users_mib is not None:
        return (
            f"/dev/shm has {free_bytes} bytes free, and a message ring takes "
            f"{ring_bytes(users_mib)} with {CHUNK_MIB}={users_mib}; unset it to have it chosen."
        )
    return (
        f"/dev/shm has {free_bytes} bytes free, and the message rings of {num_ranks} rank(s) take "
        f"{num_ranks * rank_bytes(1)} with the smallest chunks."
    )


def remedy(num_ranks: int) -> str:
    """The sentence that says what to change."""
    enough_mib = 256
    while enough_mib * _MIB < num_ranks * rank_bytes(1):
        enough_mib *= 2
    fewer = ", or start fewer data-parallel ranks" if num_ranks > 1 else ""
    return (
        f"Start the container with --shm-size={enough_mib}m or --ipc=host, or remove files from "
        f"/dev/shm{fewer}."
    )


def users_chunk_mib(environ: Mapping[str, str]) -> int | None:
    """`VLLM_MQ_MAX_CHUNK_BYTES_MB` of an environment; None if unset.

    Raises:
        ValueError: it is not a whole number of at least 1.
    """
    text = environ.get(CHUNK_MIB)
    if text is None:
        return None
    if not text.isdecimal() or int(text) == 0:
        raise ValueError(f"{CHUNK_MIB}={text!r} is not a size in MiB. Allowed: 1, 2, 3, ...")
    return int(text)


def free_bytes(root: Path = Path("/")) -> int | None:
    """Bytes free in /dev/shm of the file system at `root`; None where there is none."""
    folder = root / FOLDER
    return shutil.disk_usage(folder).free if folder.is_dir() else None


def fit(vllm_config: VllmConfig) -> None:
    """Sets the chunk of this server's rings in the environment, unless the user did. Idempotent.

    Processes that a server starts inherit what it decided: to them /dev/shm is no longer free.

    Raises:
        SharedMemoryError: the rings do not fit.
        ValueError: the user's chunk is not a size.
    """
    global _last
    parallel = vllm_config.parallel_config
    if parallel.distributed_executor_backend != "mp":
        return
    if _last is not None and _last.process != os.getpid():
        return
    written = None if _last is None else _last.written
    users_mib = None
    if os.environ.get(CHUNK_MIB) != written:
        users_mib, written = users_chunk_mib(os.environ), None
    free = free_bytes()
    if free is None:
        return
    num_ranks = parallel.data_parallel_size_local
    chosen_mib = choose_chunk_mib(free, num_ranks, users_mib)
    if users_mib is None:
        if chosen_mib is not None:
            os.environ[CHUNK_MIB] = written = str(chosen_mib)
            _announce(free, num_ranks, chosen_mib)
        elif written is not None:
            # Undo what an earlier engine of this process needed.
            del os.environ[CHUNK_MIB]
            written = None
    _last = _Decision(os.getpid(), written)


def shrink_results(environ: Mapping[str, str]) -> None:
    """Makes this worker's ring of results no larger than that of steps, where that was set."""
    chunk_mib = users_chunk_mib(environ)
    if result_chunk_mib(chunk_mib) < DEFAULT_RESULT_CHUNK_MIB:
        from vllm_deepinfer.patch import result_ring

        result_ring.install(result_chunk_mib(chunk_mib))


def _announce(free: int, num_ranks: int, chosen_mib: int) -> None:
    info_once(
        logger,
        f"/dev/shm has {free // _MIB} MiB free: the message rings of {num_ranks} rank(s) get "
        f"chunks of {chosen_mib} MiB instead of {DEFAULT_CHUNK_MIB}; larger messages go over a "
        f"socket. Set {CHUNK_MIB} to choose, or give the container a larger --shm-size.",
    )
