"""A worker with everything this package adds on accelerators, whose device is the host.

Its events are times of the host's clock, its sync-debug switch is a number that can be looked at.
"""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

from vllm.v1.worker.cpu_worker import CPUWorker

from vllm_deepinfer import runner_kernels
from vllm_deepinfer.worker.accelerator import AcceleratorSteps


class HostEvent:
    """An event of a device that has done everything by the time it is asked to."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False) -> None:
        self._time_s: float | None = None

    def record(self, stream: Any = None) -> None:
        self._time_s = time.perf_counter()

    def query(self) -> bool:
        return self._time_s is not None

    def synchronize(self) -> None:
        assert self.query(), "waits for an event that was never recorded"

    def elapsed_time(self, end: HostEvent) -> float:
        return 1e3 * (end._time_s - self._time_s)


class HostDevice(SimpleNamespace):
    """The functions of ``torch.cuda`` that the worker uses."""

    __name__ = "the host"
    Event = HostEvent
    mode = 0

    @classmethod
    def set_sync_debug_mode(cls, mode: int) -> None:
        cls.mode = mode

    @classmethod
    def get_sync_debug_mode(cls) -> int:
        return cls.mode


class WorkerOfTheHost(CPUWorker):
    """vLLM's CPU worker, able to run its V2 model runner without Triton."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        runner_kernels.register()
        super().__init__(*args, **kwargs)


class AcceleratedHostWorker(AcceleratorSteps, WorkerOfTheHost):
    device_module = HostDevice
