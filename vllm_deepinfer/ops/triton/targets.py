"""The GPUs the kernels are for, and a stand-in for Triton's CUDA driver where there is none.

The stand-in names a target, no more. With it, launchers choose kernels as they would on that
target, to be interpreted or compiled.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import triton
from triton.backends.compiler import GPUTarget

from vllm_deepinfer.ops.library import OperationError

TARGETS = {"sm_90a": 90, "sm_100a": 100}


class PretendDriver:
    """What the just-in-time compiler and the launchers ask of a driver."""

    def __init__(self, architecture: int) -> None:
        self._target = GPUTarget("cuda", architecture, 32)

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> int:
        # Caches of compiled kernels are kept by device.
        return self._target.arch

    def get_current_stream(self, device: int) -> int:
        return 0


@contextmanager
def pretend_target(name: str) -> Iterator[None]:
    """Let Triton take this machine for one with a GPU of target ``name``, one of ``TARGETS``."""
    before = triton.runtime.driver._active
    triton.runtime.driver.set_active(PretendDriver(TARGETS[name]))
    try:
        yield
    finally:
        triton.runtime.driver.set_active(before)


def architecture() -> int:
    """Family of the current device: 90 for SM90, 100 for SM100 and its successors SM10x.

    Raises:
        OperationError: the device is of another family, for which no tiles are known.
    """
    found = triton.runtime.driver.active.get_current_target().arch
    family = found // 10 * 10
    if family not in TARGETS.values():
        raise OperationError(
            f"Triton kernels: the device is sm_{found}; allowed: the families of "
            f"{', '.join(TARGETS)}."
        )
    return family
