"""Ranks for tests: processes of one gloo group, with this package's communicator."""

from __future__ import annotations

import multiprocessing
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

MOST_RANKS = 3
TIMEOUT_S = 900.0  # only ends a hang: on a busy machine imports alone take minutes
# Slow to import, and installed: what only pytest's path finds cannot be loaded beforehand.
PRELOAD = [
    "vllm_deepinfer.distributed.communicator",
    "vllm_deepinfer.distributed.exchange",
    "vllm_deepinfer.models.deepseek_v41.moe",
]


class Ranks:
    """Up to ``MOST_RANKS`` processes that wait for work; started by the first."""

    def __init__(self) -> None:
        self._processes: list[Any] = []
        self._pipes: list[Any] = []
        self._folder: tempfile.TemporaryDirectory | None = None

    def run(self, num_ranks: int, work: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Results of ``work(communicator, *arguments)`` by rank; fails with a rank's traceback.

        ``work`` must be importable by name.
        """
        if not self._processes:
            self._start()
        for pipe in self._pipes[:num_ranks]:
            pipe.send((num_ranks, work, arguments))
        try:
            return [self._result(rank) for rank in range(num_ranks)]
        except BaseException:
            self.stop()  # the other ranks may wait for the one that failed
            raise

    def stop(self) -> None:
        for process in self._processes:
            process.kill()
            process.join()
        self._processes, self._pipes = [], []
        if self._folder is not None:
            self._folder.cleanup()

    def _start(self) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOAD)
        self._folder = tempfile.TemporaryDirectory()
        store = Path(self._folder.name) / "store"
        for rank in range(MOST_RANKS):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, f"file://{store}", rank))
            process.start()
            theirs.close()
            self._processes.append(process)
            self._pipes.append(ours)

    def _result(self, rank: int) -> Any:
        assert self._pipes[rank].poll(TIMEOUT_S), f"rank {rank} gave no answer in {TIMEOUT_S:.0f} s"
        failure, result = self._pipes[rank].recv()
        assert failure is None, f"rank {rank}: {failure}"
        return result


def _serve(pipe: Any, store: str, rank: int) -> None:
    import torch.distributed as dist

    from vllm_deepinfer.distributed.communicator import DeepInferCpuCommunicator

    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=MOST_RANKS)
    groups = {size: dist.new_group(range(size)) for size in range(2, MOST_RANKS + 1)}
    communicators = {
        size: DeepInferCpuCommunicator(group, device_group=group, unique_name="ep:0")
        for size, group in groups.items()
        if rank < size
    }
    while True:
        try:
            num_ranks, work, arguments = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send((None, work(communicators[num_ranks], *arguments)))
        except Exception:
            pipe.send((traceback.format_exc(), None))
