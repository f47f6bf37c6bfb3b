"""Leads what vLLM's V2 model runner asks of CUDA to the npu, in a worker's process.

The runner is device-neutral but for streams, events and graphs, which its modules take from
``torch.cuda``. They are given a ``torch`` of their own in which ``cuda`` is the npu; ``torch.cuda``
itself, and every module not listed, stay as they are. Each name with what happens without it, and
when it can go:

``torch`` in the modules of ``STREAMS``
    "Torch not compiled with CUDA enabled" when the runner makes its first stream or event.
    Until they take them from ``torch.accelerator``.
``cudagraph_utils.graph_capture``
    AssertionError: the communicators of CUDA and XPU alone may capture.
    Until a group asks its communicator.
``buffer_utils.is_uva_available``
    ValueError: an npu has no view of pinned memory.
    Until a platform can say so.
``gpu_worker.kernel_warmup``
    Imports and tunes CUDA kernels of other models.
    Until it asks the platform.
``topk_topp_sampler.HAS_TRITON``
    A Triton kernel for top-k and top-p wherever some Triton can be imported: NotImplementedError of
    ``num_compute_units`` (0.33). Without it vLLM has torch do the same.
    Until it asks the platform.
``gpu_worker.HAS_TRITON`` (0.33)
    "Model Runner V2 requires Triton", whatever kernels are registered in its place.
    Until registered kernels count.
"""

from __future__ import annotations

import importlib
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

STREAMS = (
    "vllm.v1.worker.gpu.model_runner",
    "vllm.v1.worker.gpu.async_utils",
    "vllm.v1.worker.gpu.cudagraph_utils",
    "vllm.v1.worker.gpu.structured_outputs",
    "vllm.v1.worker.gpu.spec_decode.utils",
)
_GRAPHS = "vllm.v1.worker.gpu.cudagraph_utils"
_BUFFERS = "vllm.v1.worker.gpu.buffer_utils"
_WORKER = "vllm.v1.worker.gpu_worker"
_SAMPLER = "vllm.v1.sample.ops.topk_topp_sampler"


class RedirectError(RuntimeError):
    """The runner cannot be led to the npu in this process."""


class _Cuda:
    """The part of ``torch.cuda`` that the runner uses, on the npu. The rest does not exist."""

    def __init__(self, npu: types.ModuleType) -> None:
        self._npu = npu
        self.CUDAGraph, self.graph = npu.NPUGraph, npu.graph
        self.graph_pool_handle = npu.graph_pool_handle

    def __getattr__(self, name: str) -> Any:
        raise RedirectError(
            f"vLLM's model runner asks for torch.cuda.{name}, which has no counterpart on the npu "
            "in vllm_deepinfer.worker.npu_redirect."
        )

    def Stream(self, device: Any = None) -> torch.Stream:  # noqa: N802 - torch's name
        return self._npu.Stream(device=device) if device is not None else self._npu.Stream()

    def Event(  # noqa: N802 - torch's name
        self, enable_timing: bool = False, blocking: bool = False
    ) -> torch.Event:
        # The runner's blocking events are waited for in a thread of their own; npu's always sleep.
        return self._npu.Event(enable_timing=enable_timing)

    def current_stream(self, device: Any = None) -> torch.Stream:
        return self._npu.current_stream(device)

    def set_stream(self, stream: torch.Stream) -> None:
        from vllm.utils import torch_utils

        # vLLM remembers the current stream instead of asking for it.
        torch_utils._current_stream_tls.value = stream
        self._npu.set_stream(stream)

    @contextmanager
    def stream(self, stream: torch.Stream) -> Iterator[None]:
        before = self._npu.current_stream()
        self.set_stream(stream)
        try:
            yield
        finally:
            self.set_stream(before)


class _Torch(types.ModuleType):
    """``torch`` with another ``cuda``."""

    def __init__(self, cuda: _Cuda) -> None:
        super().__init__("torch")
        self.__dict__.update(torch.__dict__, cuda=cuda)

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def _graph_capture(cuda: _Cuda) -> Callable[[Any], Any]:
    @contextmanager
    def graph_capture(device: Any) -> Iterator[None]:
        """A stream of its own, since the default one cannot be captured."""
        stream = cuda.Stream(device)
        stream.wait_stream(cuda.current_stream())
        with cuda.stream(stream):
            yield

    return graph_capture


@dataclass(frozen=True)
class _Change:
    module: types.ModuleType
    name: str
    before: Any


class Redirect:
    """Applied by a worker before it makes its model runner, taken back when that shuts down.

    A process has one in force at most.

    Raises:
        RedirectError: this process has a CUDA device, whose users share the runner's modules.
    """

    _in_force: ClassVar[Redirect | None] = None

    def __init__(self) -> None:
        if torch.cuda.is_available():
            raise RedirectError(
                "torch.cuda is available in this process, and vLLM's model runner can be led to "
                "one device only. Hide the GPUs with CUDA_VISIBLE_DEVICES= or set "
                "DEEPINFER_PLATFORM=off."
            )
        self._changes: list[_Change] = []
        if Redirect._in_force is not None:
            # Of a worker whose start failed, which nobody shuts down.
            Redirect._in_force.undo()

    @property
    def is_applied(self) -> bool:
        return bool(self._changes)

    def apply(self, npu: types.ModuleType) -> None:
        """Lead every name of the list to ``npu``, which is ``torch.npu``."""
        Redirect._in_force = self
        cuda = _Cuda(npu)
        facade = _Torch(cuda)
        for name in STREAMS:
            self._replace(name, "torch", facade)
        self._replace(_GRAPHS, "graph_capture", _graph_capture(cuda))
        self._replace(_BUFFERS, "is_uva_available", lambda: False)
        self._replace(_WORKER, "kernel_warmup", lambda *args, **kwargs: None)
        self._replace(_SAMPLER, "HAS_TRITON", False)
        if hasattr(importlib.import_module(_WORKER), "HAS_TRITON"):
            self._replace(_WORKER, "HAS_TRITON", True)

    def undo(self) -> None:
        """Put everything back. Safe to repeat."""
        while self._changes:
            change = self._changes.pop()
            setattr(change.module, change.name, change.before)
        if Redirect._in_force is self:
            Redirect._in_force = None

    def _replace(self, module_name: str, name: str, value: Any) -> None:
        module = importlib.import_module(module_name)
        self._changes.append(_Change(module, name, getattr(module, name)))
        setattr(module, name, value)
