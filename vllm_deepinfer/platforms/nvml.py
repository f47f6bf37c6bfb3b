"""Asks the NVIDIA driver what its GPUs are, without importing torch or vLLM."""

from __future__ import annotations

import ctypes

from vllm_deepinfer.log import get_logger, warn_once

logger = get_logger(__name__)
_LIBRARY = "libnvidia-ml.so.1"


class NvmlError(RuntimeError):
    """A call into the driver's management library failed."""


def cuda_capabilities() -> list[tuple[int, int]]:
    """Compute capability (major, minor) of every GPU the driver lists; empty without a driver.

    A driver that is installed but does not answer is reported as a warning and counts as no GPU.
    """
    try:
        library = ctypes.CDLL(_LIBRARY)
    except OSError:  # no NVIDIA driver on this machine
        return []
    try:
        return _read(library)
    except NvmlError as error:
        warn_once(logger, f"No NVIDIA GPU is considered: {error}.")
        return []


def _call(library: ctypes.CDLL, name: str, *args: object) -> None:
    status = getattr(library, name)(*args)
    if status != 0:
        raise NvmlError(f"{name} of {_LIBRARY} returned status {status}")


def _read(library: ctypes.CDLL) -> list[tuple[int, int]]:
    _call(library, "nvmlInit_v2")
    try:
        count = ctypes.c_uint()
        _call(library, "nvmlDeviceGetCount_v2", ctypes.byref(count))
        capabilities = []
        for index in range(count.value):
            device = ctypes.c_void_p()
            major, minor = ctypes.c_int(), ctypes.c_int()
            _call(
                library, "nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(device)
            )
            _call(
                library,
                "nvmlDeviceGetCudaComputeCapability",
                device,
                ctypes.byref(major),
                ctypes.byref(minor),
            )
            capabilities.append((major.value, minor.value))
        return capabilities
    finally:
        _call(library, "nvmlShutdown")
