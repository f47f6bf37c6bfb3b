"""Collectives over rows of unequal number, which vLLM's communicators lack.

Everything travels as bytes over the group's own backend (gloo, HCCL), so that any dtype can.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor
from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator


class UnevenRows:
    """``all_gatherv`` and ``reduce_scatterv`` for a communicator of vLLM's, on any device."""

    world_size: int
    rank_in_group: int
    device_group: dist.ProcessGroup

    def all_gatherv(
        self, input_: Tensor | list[Tensor], dim: int = 0, sizes: list[int] | None = None
    ) -> Tensor | list[Tensor]:
        """The tensors of all ranks, joined along ``dim`` in rank order; a list in one collective.

        Args:
            input_: one tensor, or several with equally many rows.
            dim: the dimension of the rows.
            sizes: rows of every rank, zero allowed; as many as here on every rank if None.

        Raises:
            ValueError: this rank's tensors do not have the rows ``sizes`` says.
        """
        if not isinstance(input_, list):
            return self.all_gatherv([input_], dim, sizes)[0]
        rows = [tensor.movedim(dim, 0) for tensor in input_]
        if sizes is None:
            sizes = [len(rows[0])] * self.world_size
        for tensor in rows:
            self._check(sizes, sizes[self.rank_in_group : self.rank_in_group + 1], len(tensor))
        row_bytes = [num_row_bytes(tensor) for tensor in rows]
        gathered = self._all_gather_bytes(
            torch.cat([as_bytes(tensor) for tensor in rows]), max(sizes) * sum(row_bytes)
        )
        starts = [0] * self.world_size
        joined = []
        for tensor, width in zip(rows, row_bytes, strict=True):
            ends = [start + size * width for start, size in zip(starts, sizes, strict=True)]
            parts = [gathered[r, starts[r] : ends[r]] for r in range(self.world_size)]
            shape = (sum(sizes), *tensor.shape[1:])
            joined.append(torch.cat(parts).view(tensor.dtype).view(shape).movedim(0, dim))
            starts = ends
        return joined

    def reduce_scatterv(
        self, input_: Tensor, dim: int = -1, sizes: list[int] | None = None
    ) -> Tensor:
        """This rank's rows, summed over all ranks in rank order, in the tensor's dtype.

        Args:
            input_: the rows of all ranks, in rank order, of the same shape on every rank.
            dim: the dimension of the rows.
            sizes: rows that each rank receives, zero allowed; equally many if None.

        Raises:
            ValueError: the rows cannot be divided as asked.
        """
        rows = input_.movedim(dim, 0)
        if sizes is None:
            size, rest = divmod(len(rows), self.world_size)
            if rest:
                raise ValueError(
                    f"{len(rows)} rows cannot be divided equally among {self.world_size} ranks; "
                    "give sizes."
                )
            sizes = [size] * self.world_size
        self._check(sizes, sizes, len(rows))
        width, size = num_row_bytes(rows), sizes[self.rank_in_group]
        received = rows.new_empty(self.world_size * size * width, dtype=torch.uint8)
        if sum(sizes):
            dist.all_to_all_single(
                received,
                as_bytes(rows),
                [size * width] * self.world_size,
                [other * width for other in sizes],
                group=self.device_group,
            )
        parts = received.view(rows.dtype).view(self.world_size, size, *rows.shape[1:])
        total = parts[0].clone()
        for part in parts[1:]:
            total += part
        return total.movedim(0, dim)

    def _all_gather_bytes(self, own: Tensor, num_bytes: int) -> Tensor:
        """``[ranks, num_bytes]``: every rank's bytes, padded to ``num_bytes``."""
        gathered = own.new_empty(self.world_size, num_bytes)
        if num_bytes:
            padded = torch.nn.functional.pad(own, (0, num_bytes - len(own)))
            dist.all_gather_into_tensor(gathered.view(-1), padded, group=self.device_group)
        return gathered

    def _check(self, sizes: list[int], here: list[int], num_rows: int) -> None:
        """Refuse ``num_rows`` rows where ``sizes`` say that the sum of ``here`` is."""
        if len(sizes) != self.world_size:
            raise ValueError(f"sizes is {sizes}, but there are {self.world_size} ranks.")
        if sum(here) != num_rows:
            raise ValueError(
                f"sizes is {sizes}, but rank {self.rank_in_group} has {num_rows} rows instead of "
                f"{sum(here)}."
            )


class DeepInferCpuCommunicator(UnevenRows, CpuCommunicator):
    """vLLM's CPU communicator with ``all_gatherv`` and ``reduce_scatterv``."""


def num_row_bytes(rows: Tensor) -> int:
    """Bytes of one row, along the first dimension; also of a tensor without rows."""
    return rows.shape[1:].numel() * rows.element_size()


def as_bytes(rows: Tensor) -> Tensor:
    """The content, uint8 ``[n]``."""
    return rows.contiguous().flatten().view(torch.uint8)
