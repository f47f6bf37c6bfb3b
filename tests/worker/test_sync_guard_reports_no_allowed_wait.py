"""Threads that forbid waits for the device and threads that allow them share one switch.

If this fails, an intended wait ends the engine, or the switch stays on after the guard has gone.
"""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from vllm.utils import gpu_sync_debug

from vllm_deepinfer.worker import sync_guard
from vllm_deepinfer.worker.sync_guard import SyncGuard, allow_sync

ERROR, WARN, DEFAULT = 2, 1, 0


class Switch:
    """A device's sync-debug mode, kept as PyTorch keeps it: one for the process."""

    def __init__(self, mode: int = DEFAULT) -> None:
        self.mode = mode

    def set_sync_debug_mode(self, mode: int) -> None:
        self.mode = mode

    def get_sync_debug_mode(self) -> int:
        return self.mode

    def guard(self, mode: str = "error") -> SyncGuard:
        return SyncGuard(mode, self.set_sync_debug_mode, self.get_sync_debug_mode)


@pytest.fixture
def installed():
    yield sync_guard.install
    sync_guard.uninstall()


@given(
    st.sampled_from([DEFAULT, WARN]),
    st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["forbid", "allow", "leave"]))),
)
def test_switch_follows_from_all_threads_in_every_order(before, steps):
    """Regions of three threads, played by one, are entered and left in any order."""
    switch = Switch(before)
    guard = switch.guard()
    open_regions: dict[int, list] = {0: [], 1: [], 2: []}

    for thread, step in steps:
        regions = open_regions[thread]
        if step == "leave":
            if regions:
                regions.pop()[0].__exit__(None, None, None)
        else:
            region = getattr(guard, step)()
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(threading, "get_ident", lambda thread=thread: thread)
                region.__enter__()
            regions.append((region, step))
        innermost = [regions[-1][1] for regions in open_regions.values() if regions]
        if not innermost:
            assert switch.mode == before
        elif "allow" in innermost:
            assert switch.mode == DEFAULT
        else:
            assert switch.mode == ERROR


def test_regions_nest_in_one_thread():
    switch = Switch()
    guard = switch.guard("warn")
    with guard.forbid():
        assert switch.mode == WARN
        with guard.allow():
            assert switch.mode == DEFAULT
            with guard.forbid():
                assert switch.mode == WARN
            assert switch.mode == DEFAULT
        assert switch.mode == WARN
    assert switch.mode == DEFAULT


def test_switch_comes_back_after_an_exception():
    switch = Switch(WARN)
    with pytest.raises(KeyError), switch.guard().forbid():
        raise KeyError
    assert switch.mode == WARN


def test_no_thread_that_allows_ever_meets_an_error():
    switch = Switch()
    guard = switch.guard()
    met: list[int] = []
    is_over = threading.Event()

    def forbid() -> None:
        while not is_over.is_set():
            with guard.forbid():
                pass

    def allow() -> None:
        for _ in range(2000):
            with guard.allow():
                met.append(switch.mode)

    forbidding = [threading.Thread(target=forbid) for _ in range(3)]
    allowing = [threading.Thread(target=allow) for _ in range(3)]
    for thread in forbidding + allowing:
        thread.start()
    for thread in allowing:
        thread.join()
    is_over.set()
    for thread in forbidding:
        thread.join()
    assert set(met) == {DEFAULT}
    assert switch.mode == DEFAULT


def test_guard_that_is_off_never_touches_the_switch():
    guard = SyncGuard("off", set_mode=None)
    with guard.forbid(), guard.allow():
        pass


def test_device_without_a_way_to_read_the_switch_is_left_at_default():
    switch = Switch(WARN)
    device = SimpleNamespace(__name__="torch.npu", set_sync_debug_mode=switch.set_sync_debug_mode)
    with SyncGuard.of(device, "error").forbid():
        assert switch.mode == ERROR
    assert switch.mode == DEFAULT


def test_device_without_the_switch_is_refused():
    device = SimpleNamespace(__name__="torch.npu")
    with pytest.raises(ValueError, match="torch.npu has no set_sync_debug_mode"):
        SyncGuard.of(device, "warn")
    SyncGuard.of(device, "off")


def test_wrong_mode_is_refused():
    with pytest.raises(ValueError, match="'on'; allowed: off, warn, error"):
        SyncGuard("on", print)


def test_points_that_vllm_marks_pass_an_installed_guard(installed):
    switch = Switch()
    guard = switch.guard()
    installed(guard)
    with guard.forbid():
        with gpu_sync_debug.gpu_sync_allowed():
            assert switch.mode == DEFAULT
        with allow_sync():
            assert switch.mode == DEFAULT
        assert switch.mode == ERROR


def test_marks_are_free_again_once_the_guard_is_gone(installed):
    switch = Switch()
    installed(switch.guard())
    installed(SyncGuard("off", None))
    assert gpu_sync_debug._SYNC_CHECK_MODE is None
    with allow_sync(), gpu_sync_debug.gpu_sync_allowed():
        assert switch.mode == DEFAULT
    installed(switch.guard("warn"))


def test_vllms_own_check_and_the_guard_exclude_each_other(installed, monkeypatch):
    monkeypatch.setattr(gpu_sync_debug, "_SYNC_CHECK_MODE", "warn")
    with pytest.raises(ValueError, match="VLLM_GPU_SYNC_CHECK=warn is set"):
        installed(Switch().guard())
