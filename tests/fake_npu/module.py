"""`torch.npu`: the names that torch_npu gives it and this package or vLLM's model runner use."""

from __future__ import annotations

import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from fake_npu import graphs

_MODES = {"default": 0, "warn": 1, "error": 2}


def make() -> types.ModuleType:
    """The module; `torch._register_device_module` puts it in its place."""
    made = types.ModuleType("torch.npu", __doc__)
    for public in (*_FUNCTIONS, Stream, Event, device, *graphs.PUBLIC):
        setattr(made, public.__name__, public)
    made.amp = types.ModuleType("torch.npu.amp")
    return made


def _index(device: Any = None) -> int:
    if device is None:
        return current_device()
    if isinstance(device, int):
        return device
    index = torch.device(device).index
    return current_device() if index is None else index


# ---- devices


def is_available() -> bool:
    return device_count() > 0


def is_initialized() -> bool:
    return True


def init() -> None:
    pass


def _is_in_bad_fork() -> bool:
    return False


def device_count() -> int:
    return torch.ops.fake_npu.device_count()


def current_device() -> int:
    return torch.ops.fake_npu.current_device()


def set_device(device: Any) -> None:
    torch.ops.fake_npu.set_device(_index(device))


def get_device_name(device: Any = None) -> str:
    return "Fake Ascend950"


def get_soc_version() -> int:
    return 260


def get_amp_supported_dtype() -> list[torch.dtype]:
    return [torch.float16, torch.bfloat16, torch.float32]


class device:  # noqa: N801 - torch's name
    """Makes a device the current one in a region; -1 or None leaves it."""

    def __init__(self, device: Any) -> None:
        self.index = -1 if device is None or device == -1 else _index(device)

    def __enter__(self) -> None:
        self.before = current_device()
        if self.index >= 0:
            torch.ops.fake_npu.set_device(self.index)

    def __exit__(self, *error: Any) -> None:
        torch.ops.fake_npu.set_device(self.before)


# ---- streams, events and waits


class Stream(torch.Stream):
    """A stream of the current npu unless told otherwise."""

    def __new__(cls, device: Any = None, priority: int = 0, **kwargs: Any):
        if "stream_id" in kwargs:
            return super().__new__(cls, **kwargs)
        return super().__new__(cls, device=torch.device("npu", _index(device)), priority=priority)


class Event:
    """Makes events of the npu; torch compares times of its own class only."""

    def __new__(cls, enable_timing: bool = False, blocking: bool = False, **_: Any) -> torch.Event:
        return torch.Event("npu", enable_timing=enable_timing, blocking=blocking)


def current_stream(device: Any = None) -> torch.Stream:
    return torch.accelerator.current_stream(_index(device))


def default_stream(device: Any = None) -> torch.Stream:
    return torch.Stream(stream_id=0, device_index=_index(device), device_type=_DEVICE_TYPE)


_DEVICE_TYPE = 20  # c10::DeviceType::PrivateUse1


def set_stream(stream: torch.Stream) -> None:
    torch.accelerator.set_stream(stream)


@contextmanager
def stream(stream: torch.Stream | None) -> Iterator[None]:
    if stream is None:
        yield
        return
    before = torch.accelerator.current_stream(stream.device)
    torch.accelerator.set_stream(stream)
    try:
        yield
    finally:
        torch.accelerator.set_stream(before)


def synchronize(device: Any = None) -> None:
    torch.accelerator.synchronize(_index(device))


def set_sync_debug_mode(mode: int | str) -> None:
    """Report waits for the device: 0 or "default" not, 1 or "warn", 2 or "error"."""
    if isinstance(mode, str) and mode not in _MODES:
        raise RuntimeError(f"invalid value of debug_mode: {mode!r}; allowed: {', '.join(_MODES)}")
    torch.ops.fake_npu.set_sync_mode(_MODES[mode] if isinstance(mode, str) else int(mode))


def get_sync_debug_mode() -> int:
    return torch.ops.fake_npu.sync_mode()


# ---- memory


def empty_cache() -> None:
    torch.accelerator.empty_cache()


def memory_allocated(device: Any = None) -> int:
    return torch.accelerator.memory_allocated(_index(device))


def max_memory_allocated(device: Any = None) -> int:
    return torch.accelerator.max_memory_allocated(_index(device))


def memory_reserved(device: Any = None) -> int:
    return torch.accelerator.memory_reserved(_index(device))


def memory_stats(device: Any = None) -> dict[str, Any]:
    return dict(torch.accelerator.memory_stats(_index(device)))


def reset_peak_memory_stats(device: Any = None) -> None:
    torch.accelerator.reset_peak_memory_stats(_index(device))


def mem_get_info(device: Any = None) -> tuple[int, int]:
    return torch.accelerator.get_memory_info(_index(device))


# ---- random numbers


def manual_seed(seed: int) -> None:
    torch.ops.fake_npu.manual_seed(current_device(), int(seed))


def manual_seed_all(seed: int) -> None:
    for index in range(device_count()):
        torch.ops.fake_npu.manual_seed(index, int(seed))


def initial_seed() -> int:
    return torch.ops.fake_npu.initial_seed(current_device())


def get_rng_state(device: Any = None) -> torch.Tensor:
    return torch.ops.fake_npu.rng_state(_index(device))


def set_rng_state(state: torch.Tensor, device: Any = None) -> None:
    torch.ops.fake_npu.set_rng_state(_index(device), state)


_FUNCTIONS = (
    is_available,
    is_initialized,
    init,
    _is_in_bad_fork,
    device_count,
    current_device,
    set_device,
    get_device_name,
    get_soc_version,
    get_amp_supported_dtype,
    current_stream,
    default_stream,
    set_stream,
    stream,
    synchronize,
    set_sync_debug_mode,
    get_sync_debug_mode,
    empty_cache,
    memory_allocated,
    max_memory_allocated,
    memory_reserved,
    memory_stats,
    reset_peak_memory_stats,
    mem_get_info,
    manual_seed,
    manual_seed_all,
    initial_seed,
    get_rng_state,
    set_rng_state,
)
