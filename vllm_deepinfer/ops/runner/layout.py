"""Pointer arithmetic of the upstream kernels, said with tensors."""

from __future__ import annotations

from collections.abc import Iterator

import torch


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """One-dimensional view of the memory `tensor` spans, so that `flat(t)[row * stride + column]`
    is what a kernel reads at `t_ptr + row * stride + column`. Needs non-negative strides."""
    if tensor.dim() == 1 and tensor.stride(0) == 1:
        return tensor
    if tensor.is_contiguous():
        return tensor.view(-1)
    if tensor.numel() == 0:
        return tensor.as_strided((0,), (1,))
    span = 1 + sum(
        (size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True)
    )
    return tensor.as_strided((span,), (1,))


def vocabulary_blocks(rows: torch.Tensor, block_size: int) -> Iterator[tuple[slice, torch.Tensor]]:
    """Views of rows [num_rows, vocab_size] as blocks of tokens: all full blocks, [num_rows,
    num_full, block_size], then the short last one, [num_rows, 1, rest]; each where there is one,
    with its slice of the blocks."""
    num_full = rows.shape[1] // block_size
    width = num_full * block_size
    if num_full:
        yield slice(0, num_full), rows[:, :width].unflatten(1, (num_full, block_size))
    if width < rows.shape[1]:
        yield slice(num_full, num_full + 1), rows[:, width:].unsqueeze(1)


def replace_inactive(active: torch.Tensor) -> torch.Tensor:
    """For each row (bool [n], n > 0) an active row to copy from, int64 [n]: itself if active, else
    the first active one (row 0 if there is none).

    Scattering through this index repeats an active row's write in the place of every inactive
    one: equal values at equal places, so neither order nor a data-dependent shape matters.
    """
    rows = torch.arange(active.shape[0], device=active.device)
    return torch.where(active, rows, active.int().argmax())


def ban(logits: torch.Tensor, token_ids: torch.Tensor, where: torch.Tensor) -> None:
    """Set logits[row, token_ids[row, k]] to -inf wherever `where[row, k]`.

    logits: float [n, vocab_size], changed in place. token_ids: int [n, k]; entries not selected by
    the bool `where` [n, k] may hold anything.
    """
    # The minimum with +inf leaves a logit as it is: unselected entries need no place of their own.
    index = torch.where(where, token_ids, 0).long()
    values = torch.full_like(index, float("inf"), dtype=logits.dtype)
    values.masked_fill_(where, float("-inf"))
    logits.scatter_reduce_(1, index, values, "amin", include_self=True)
