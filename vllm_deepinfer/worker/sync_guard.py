"""Finds waits for the device where the host should run ahead of it.

A step is launched, not waited for: one ``.item()`` in it, and the device idles while the host
prepares the next. PyTorch can warn of such calls or raise, but its switch is one for the process:
saved and restored by several threads it is left wherever the last of them found it. Here threads
state what they want, and the switch follows from all of them.

What the switch does not see: ``Event.synchronize``, by which this package and vLLM wait where they
mean to, and copies between the device and memory that is not pinned.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import ModuleType
from typing import Any

MODES = ("off", "warn", "error")
_DEFAULT = 0
_LEVELS = {"warn": 1, "error": 2}


class SyncGuard:
    """Decides a device's sync-debug mode from what every thread in a region wants.

    One thread that allows outranks all that forbid, since the switch cannot tell threads apart: a
    wait may be missed, but none that is allowed is reported. Threads in no region have no say, and
    while another forbids, theirs are reported too: put them in ``allow``.

    Args:
        mode: "off" does nothing, "warn" and "error" are PyTorch's.
        set_mode: the device's ``set_sync_debug_mode``; takes 0 (default), 1 (warn) or 2 (error).
        get_mode: its ``get_sync_debug_mode``; None if it has none, and 0 is put back in the end.

    Raises:
        ValueError: ``mode`` is none of ``MODES``.
    """

    def __init__(
        self,
        mode: str,
        set_mode: Callable[[int], Any],
        get_mode: Callable[[], int] | None = None,
    ) -> None:
        if mode not in MODES:
            raise ValueError(f"sync_guard is {mode!r}; allowed: {', '.join(MODES)}")
        self.mode = mode
        self._set_mode, self._get_mode = set_mode, get_mode
        self._lock = threading.Lock()
        # By thread: whether each region it is in forbids, the innermost last.
        self._regions: dict[int, list[bool]] = {}
        self._before = self._current = _DEFAULT

    @classmethod
    def of(cls, device: ModuleType, mode: str) -> SyncGuard:
        """The guard of ``torch.cuda``, ``torch.npu`` or another module with such functions.

        Raises:
            ValueError: the module has none, and ``mode`` is not "off"; or as the constructor.
        """
        set_mode = getattr(device, "set_sync_debug_mode", None)
        if set_mode is None and mode != "off":
            raise ValueError(
                f"sync_guard is {mode!r}, but {device.__name__} has no set_sync_debug_mode; "
                "allowed: off"
            )
        return cls(mode, set_mode, getattr(device, "get_sync_debug_mode", None))

    def forbid(self) -> AbstractContextManager[None]:
        """A region of this thread in which waits are reported; also a decorator."""
        return nullcontext() if self.mode == "off" else self._region(forbids=True)

    def allow(self) -> AbstractContextManager[None]:
        """A region of this thread in which waits are meant."""
        return nullcontext() if self.mode == "off" else self._region(forbids=False)

    @contextmanager
    def _region(self, forbids: bool) -> Iterator[None]:
        thread = threading.get_ident()
        with self._lock:
            if not self._regions:
                self._before = self._current = _DEFAULT if not self._get_mode else self._get_mode()
            self._regions.setdefault(thread, []).append(forbids)
            self._follow()
        try:
            yield
        finally:
            with self._lock:
                self._regions[thread].pop()
                if not self._regions[thread]:
                    del self._regions[thread]
                self._follow()

    def _follow(self) -> None:
        """Set what the regions add up to; the lock is held."""
        innermost = [regions[-1] for regions in self._regions.values()]
        if not innermost:
            wanted = self._before
        else:
            wanted = _LEVELS[self.mode] if all(innermost) else _DEFAULT
        if wanted != self._current:
            self._set_mode(wanted)
            self._current = wanted


_installed: SyncGuard | None = None


def allow_sync() -> AbstractContextManager[None]:
    """``allow`` of the process's guard, for waits that are meant; nothing where there is none."""
    return nullcontext() if _installed is None else _installed.allow()


def install(guard: SyncGuard) -> None:
    """Make ``guard`` the process's, and let the waits that vLLM means to make pass it.

    vLLM marks them for a check of its own (VLLM_GPU_SYNC_CHECK), which is for CUDA alone. The marks
    do nothing while that check is off, and no hook tells others of them; so they are led here.

    Raises:
        ValueError: vLLM's check is on: both set the same switch.
    """
    global _installed
    from vllm.utils import gpu_sync_debug

    if guard.mode == "off":
        uninstall()
        return
    if _installed is None and gpu_sync_debug._SYNC_CHECK_MODE is not None:
        raise ValueError(
            f"sync_guard is {guard.mode!r} while VLLM_GPU_SYNC_CHECK="
            f"{gpu_sync_debug._SYNC_CHECK_MODE} is set; allowed: one of the two. Unset one."
        )
    _installed = guard
    gpu_sync_debug._SYNC_CHECK_MODE = guard.mode
    gpu_sync_debug._allow_syncs = allow_sync
    # What compiles late waits too, and is marked by wrappers that vLLM's check puts in place.
    gpu_sync_debug._install_compile_time_sync_suppressors()


def uninstall() -> None:
    """Take back what ``install`` did; nothing where no guard is installed.

    The marks on compilers stay, and do nothing by themselves.
    """
    global _installed
    if _installed is None:
        return
    from vllm.utils import gpu_sync_debug

    _installed, gpu_sync_debug._SYNC_CHECK_MODE = None, None
