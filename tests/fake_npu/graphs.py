"""`torch.npu.NPUGraph` and `torch.npu.graph` over the recorder in C++."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from typing import Any

import torch

_pools = itertools.count(1)
_host_calls: list[Callable[[], None]] = []
_num_replays = 0


class NPUGraph:
    """Operations of a capture, repeated by `replay`."""

    def __init__(self, keep_graph: bool = False) -> None:
        self._graph = torch.ops.fake_npu.new_graph()
        self._pool: tuple[int, int] | None = None

    def __del__(self) -> None:
        torch.ops.fake_npu.free_graph(self._graph)

    def capture_begin(
        self, pool: tuple[int, int] | None = None, capture_error_mode: str = "global", **_: Any
    ) -> None:
        if capture_error_mode not in ("global", "thread_local", "relaxed"):
            raise RuntimeError(f"unknown capture error mode {capture_error_mode!r}")
        if torch.npu.current_stream() == torch.npu.default_stream():
            raise RuntimeError("fake npu: graphs are not captured on the default stream")
        torch.ops.fake_npu.begin_capture(self._graph)
        self._pool = pool or graph_pool_handle()

    def capture_end(self) -> None:
        torch.ops.fake_npu.end_capture()

    def replay(self) -> None:
        global _num_replays
        if self._pool is None:
            raise RuntimeError("fake npu: nothing has been captured in this graph")
        torch.ops.fake_npu.replay(self._graph)
        _num_replays += 1
        _note_replay()

    def reset(self) -> None:
        torch.ops.fake_npu.reset_graph(self._graph)
        self._pool = None

    def pool(self) -> tuple[int, int]:
        return self._pool

    @property
    def num_operations(self) -> int:
        """Operations in the graph; the vendor's class does not tell."""
        return torch.ops.fake_npu.num_nodes(self._graph)


class graph:  # noqa: N801 - torch's name
    """Captures what is launched in a region, on a stream of its own."""

    def __init__(
        self,
        npu_graph: NPUGraph,
        pool: tuple[int, int] | None = None,
        stream: torch.Stream | None = None,
        capture_error_mode: str = "global",
        **_: Any,
    ) -> None:
        self.npu_graph, self.pool, self.mode = npu_graph, pool, capture_error_mode
        self.stream = torch.npu.stream(stream or torch.npu.Stream())

    def __enter__(self) -> None:
        torch.npu.synchronize()
        self.stream.__enter__()
        self.npu_graph.capture_begin(pool=self.pool, capture_error_mode=self.mode)

    def __exit__(self, *error: Any) -> None:
        self.npu_graph.capture_end()
        self.stream.__exit__(*error)


def graph_pool_handle() -> tuple[int, int]:
    return (0, next(_pools))


def is_current_stream_capturing() -> bool:
    return torch.ops.fake_npu.capturing()


def num_replays() -> int:
    """Replays of all graphs in this process so far."""
    return _num_replays


def _note_replay() -> None:
    """Lengthen the current device's file in the folder `FAKE_NPU_REPLAYS`, for other processes.

    A file's size is the number of replays; it outlives a process that is killed.
    """
    if folder := os.environ.get("FAKE_NPU_REPLAYS"):
        with open(os.path.join(folder, f"npu{torch.npu.current_device()}"), "ab") as file:
            file.write(b".")


def call_in_graphs(call: Callable[[], None]) -> None:
    """Call `call` now; where a graph is captured, its replays call it again."""
    call()
    if is_current_stream_capturing():
        _host_calls.append(call)
        torch.ops.fake_npu.record_host_call(len(_host_calls) - 1)


def _repeat(call: int) -> None:
    _host_calls[call]()


def register() -> None:
    """Give the recorder its way back into Python."""
    torch.library.impl("fake_npu::host_call", "CompositeExplicitAutograd", _repeat)


PUBLIC = (NPUGraph, graph, graph_pool_handle, is_current_stream_capturing)
