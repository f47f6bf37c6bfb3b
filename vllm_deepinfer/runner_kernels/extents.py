"""How far a kernel must reach: exact on the host, an upper bound on an accelerator.

A Triton program reads its own loop bounds from memory. A torch call has to know its shape before it
runs. On the host reading a number from a tensor is free, so shapes are exact; on an accelerator it
would stall the queue, so shapes take a bound known from the tensors' sizes and a mask takes the
rest away. Every such choice of `runner_kernels` is made here.
"""

from __future__ import annotations

from typing import NamedTuple

import torch


def is_host(tensor: torch.Tensor) -> bool:
    """Whether reading a number from `tensor` is free of synchronisation."""
    return tensor.device.type == "cpu"


def extent(count: torch.Tensor, bound: int) -> int:
    """`count` (0-d, at most `bound`) where it can be read for free, `bound` elsewhere."""
    return min(int(count), bound) if is_host(count) else bound


def largest(counts: torch.Tensor, bound: int) -> int:
    """The largest of `counts` (1-d, not empty, non-negative), under the rule of `extent`."""
    return extent(counts.max(), bound) if is_host(counts) else bound


def may_hold(condition: torch.Tensor) -> bool:
    """False only where it is known for free that `condition` (bool) holds nowhere."""
    return bool(condition.any()) if is_host(condition) else True


def selected_rows(condition: torch.Tensor) -> torch.Tensor | None:
    """Indices (int64) of the rows worth computing, or None for all of them.

    `condition` is bool [num_rows] and marks the rows a kernel changes. Only the host gets a
    selection; an accelerator computes every row, which must then be harmless.
    """
    if not is_host(condition) or bool(condition.all()):
        return None
    return condition.nonzero().view(-1)


def replace_inactive(active: torch.Tensor) -> torch.Tensor:
    """For each row (bool [n], n > 0) an active row to copy from, int64 [n]: itself if active, else
    the first active one (row 0 if there is none).

    Scattering through this index repeats an active row's write in the place of every inactive
    one: equal values at equal places, so neither order nor a data-dependent shape matters.
    """
    rows = torch.arange(active.shape[0], device=active.device)
    return torch.where(active, rows, active.int().argmax())


class RaggedRows(NamedTuple):
    """Items stored row after row, told which row each belongs to.

    size: how many items to compute.
    row: int64 [size], the row of each item, always a valid row.
    item: [size], the item's place in the whole storage, dtype of the offsets.
    present: bool [size], False behind the last row's end; None if all are present.
    """

    size: int
    row: torch.Tensor
    item: torch.Tensor
    present: torch.Tensor | None


def ragged_rows(starts_and_end: torch.Tensor, num_rows: int, bound: int) -> RaggedRows:
    """Split up to `bound` items by `starts_and_end` (int32/int64 [>= num_rows + 1], ascending,
    first element 0). `num_rows` must be positive."""
    ends = starts_and_end[1 : num_rows + 1]
    rows = full_rows(starts_and_end, num_rows, extent(ends[-1], bound))
    if is_host(ends):
        return rows
    return rows._replace(row=rows.row.clamp_(max=num_rows - 1), present=rows.item < ends[-1])


def full_rows(starts_and_end: torch.Tensor, num_rows: int, num_items: int) -> RaggedRows:
    """As `ragged_rows`, for a caller that knows the rows to hold `num_items` together."""
    ends = starts_and_end[1 : num_rows + 1]
    item = torch.arange(num_items, dtype=ends.dtype, device=ends.device)
    return RaggedRows(num_items, torch.searchsorted(ends, item, right=True), item, None)


def store(destination: torch.Tensor, values: torch.Tensor, present: torch.Tensor | None) -> None:
    """Copy `values` into `destination` (same shape) wherever `present`; None means everywhere."""
    if present is not None:
        values = torch.where(present, values, destination)
    destination.copy_(values)
