"""The queue of a worker's results, whose chunks vLLM gives a fixed size.

Symptom: with 64 MiB of /dev/shm, the usual size in a container, every start ends in "Insufficient
space in /dev/shm: 240 MiB required", whatever VLLM_MQ_MAX_CHUNK_BYTES_MB says.
Reason: the variable sizes the ring of steps alone; the worker makes the ring of results with the
class's default of 24 MiB a chunk, in a method that no hook reaches.
Versions: 0.32 and 0.33.
Remove when: the variable, or an option, sizes the ring of results too.
"""

from __future__ import annotations

from typing import Any


def install(chunk_mib: int) -> None:
    """Gives queues that a worker of this process makes from now on chunks of `chunk_mib` MiB.

    Call it in the worker's process, before the worker is ready. Safe to repeat.
    """
    from vllm.distributed.device_communicators.shm_broadcast import MessageQueue
    from vllm.v1.executor import multiproc_executor

    class ResultQueue(MessageQueue):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            kwargs.setdefault("max_chunk_bytes", chunk_mib << 20)
            super().__init__(*args, **kwargs)

    multiproc_executor.MessageQueue = ResultQueue
