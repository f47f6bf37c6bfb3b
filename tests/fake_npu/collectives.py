"""The backend "hccl": gloo over the bytes of npu tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import ProcessGroup, Work

from fake_npu import graphs


def register() -> None:
    """Make "hccl" known to torch.distributed, for tensors on npus."""
    dist.Backend.register_backend("hccl", HcclGroup, devices=["npu"])


def _bytes(tensor: Tensor) -> Tensor:
    """The tensor's bytes on the CPU: what only moves can be of any dtype.

    Raises:
        ValueError: the tensor is not contiguous.
    """
    if not tensor.is_contiguous():
        raise ValueError(f"hccl: tensors must be contiguous, not of strides {tensor.stride()}")
    return _shown(tensor).view(torch.uint8)


def _shown(tensor: Tensor) -> Tensor:
    if tensor.device.type != "npu":
        raise ValueError(f"hccl: tensors must be on an npu, not on {tensor.device}")
    return torch.ops.fake_npu.cpu_alias(tensor)


class HcclGroup(ProcessGroup):
    """Every collective as gloo's; a graph that is captured repeats it."""

    def __init__(self, store: Any, rank: int, size: int, timeout: Any) -> None:
        super().__init__(rank, size)
        self._gloo = dist.ProcessGroupGloo(store, rank, size, timeout)
        # torch keeps a group's name with its backends.
        self._register_backend(torch.device("npu"), ProcessGroup.BackendType.CUSTOM, self._gloo)

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        return "hccl"

    def _run(self, start: Callable[[], Work]) -> Work:
        work: list[Work] = []

        def run() -> None:
            work[:] = [start()]
            work[0].wait()

        graphs.call_in_graphs(run)
        return work[0]

    # ---- sums: in the dtype of the tensors

    def allreduce(self, tensors: list[Tensor], options: Any = None) -> Work:
        shown = [_shown(tensor) for tensor in tensors]
        return self._run(lambda: self._gloo.allreduce(shown, options or dist.AllreduceOptions()))

    def reduce(self, tensors: list[Tensor], options: Any = None) -> Work:
        shown = [_shown(tensor) for tensor in tensors]
        return self._run(lambda: self._gloo.reduce(shown, options or dist.ReduceOptions()))

    def reduce_scatter(
        self, outputs: list[Tensor], inputs: list[list[Tensor]], options: Any = None
    ) -> Work:
        to = [_shown(tensor) for tensor in outputs]
        parts = [[_shown(tensor) for tensor in each] for each in inputs]
        options = options or dist.ReduceScatterOptions()
        return self._run(lambda: self._gloo.reduce_scatter(to, parts, options))

    def _reduce_scatter_base(self, output: Tensor, input_: Tensor, options: Any = None) -> Work:
        to, whole = _shown(output), _shown(input_)
        options = options or dist.ReduceScatterOptions()
        return self._run(lambda: self._gloo._reduce_scatter_base(to, whole, options))

    # ---- moves: as bytes

    def broadcast(self, tensors: list[Tensor], options: Any = None) -> Work:
        moved = [_bytes(tensor) for tensor in tensors]
        return self._run(lambda: self._gloo.broadcast(moved, options or dist.BroadcastOptions()))

    def allgather(
        self, outputs: list[list[Tensor]], inputs: list[Tensor], options: Any = None
    ) -> Work:
        to = [[_bytes(tensor) for tensor in each] for each in outputs]
        own = [_bytes(tensor) for tensor in inputs]
        options = options or dist.AllgatherOptions()
        return self._run(lambda: self._gloo.allgather(to, own, options))

    def _allgather_base(self, output: Tensor, input_: Tensor, options: Any = None) -> Work:
        to, own = _bytes(output.view(-1)), _bytes(input_.view(-1))
        options = options or dist.AllgatherOptions()
        return self._run(lambda: self._gloo._allgather_base(to, own, options))

    def gather(self, outputs: list[list[Tensor]], inputs: list[Tensor], options: Any) -> Work:
        to = [[_bytes(tensor) for tensor in each] for each in outputs]
        own = [_bytes(tensor) for tensor in inputs]
        return self._run(lambda: self._gloo.gather(to, own, options))

    def scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], options: Any) -> Work:
        to = [_bytes(tensor) for tensor in outputs]
        parts = [[_bytes(tensor) for tensor in each] for each in inputs]
        return self._run(lambda: self._gloo.scatter(to, parts, options))

    def alltoall_base(
        self,
        output: Tensor,
        input_: Tensor,
        output_sizes: list[int],
        input_sizes: list[int],
        options: Any = None,
    ) -> Work:
        to, own = _rows(output), _rows(input_)
        options = options or dist.AllToAllOptions()
        return self._run(
            lambda: self._gloo.alltoall_base(to, own, output_sizes, input_sizes, options)
        )

    def alltoall(self, outputs: list[Tensor], inputs: list[Tensor], options: Any = None) -> Work:
        to = [_bytes(tensor).view(-1) for tensor in outputs]
        own = torch.cat([_bytes(tensor).view(-1) for tensor in inputs])
        received = torch.empty(sum(map(len, to)), dtype=torch.uint8)
        sizes, own_sizes = [len(part) for part in to], [tensor.nbytes for tensor in inputs]
        options = options or dist.AllToAllOptions()

        def exchange() -> Work:
            torch.cat([_bytes(tensor).view(-1) for tensor in inputs], out=own)
            work = self._gloo.alltoall_base(received, own, sizes, own_sizes, options)
            work.wait()
            for part, content in zip(to, received.split(sizes), strict=True):
                part.copy_(content)
            return work

        return self._run(exchange)

    def send(self, tensors: list[Tensor], rank: int, tag: int = 0) -> Work:
        return self._gloo.send([_bytes(tensor) for tensor in tensors], rank, tag)

    def recv(self, tensors: list[Tensor], rank: int, tag: int = 0) -> Work:
        return self._gloo.recv([_bytes(tensor) for tensor in tensors], rank, tag)

    def barrier(self, opts: Any = None) -> Work:
        return self._run(lambda: self._gloo.barrier(opts or dist.BarrierOptions()))

    # ---- the names of torch 2.13

    def all_gather_single(self, output: Tensor, input_: Tensor, options: Any = None) -> Work:
        return self._allgather_base(output, input_, options)

    def reduce_scatter_single(self, output: Tensor, input_: Tensor, options: Any = None) -> Work:
        return self._reduce_scatter_base(output, input_, options)

    def all_to_all_single(
        self,
        output: Tensor,
        input_: Tensor,
        output_sizes: list[int],
        input_sizes: list[int],
        options: Any = None,
    ) -> Work:
        return self.alltoall_base(output, input_, output_sizes, input_sizes, options)


def _rows(tensor: Tensor) -> Tensor:
    """Bytes, with the first dimension kept: splits of an exchange count rows."""
    return _bytes(tensor).view(len(tensor), -1) if tensor.numel() else _bytes(tensor)
