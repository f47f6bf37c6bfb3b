# ruff: noqa: N803 -- parameters carry the names of the kernels' arguments
"""Torch forms of the kernels in `vllm.v1.worker.gpu.block_table` and of KV block zeroing
(`vllm.v1.worker.utils`).

All cache groups are handled by the same few torch calls, however many there are: block tables are
addressed in one window of memory, see `pointers.py`.
"""

from __future__ import annotations

from typing import Any

import torch

from vllm_deepinfer.runner_kernels import extents
from vllm_deepinfer.runner_kernels.extents import ragged_rows
from vllm_deepinfer.runner_kernels.forms import later_form
from vllm_deepinfer.runner_kernels.pointers import memory_of, read_once, tensor_at

MODULE = "vllm.v1.worker.gpu.block_table"


def gather_block_tables(
    batch_idx_to_req_idx: torch.Tensor,
    src_block_table_ptrs: torch.Tensor,
    dst_block_table_ptrs: torch.Tensor,
    block_table_strides: torch.Tensor,
    num_blocks_ptr: torch.Tensor,
    num_blocks_stride: int,
    num_reqs: int,
    BLOCK_SIZE: int,
    *,
    grid: tuple[int, ...],
    num_null_blocks: torch.Tensor | None = None,
) -> None:
    """Copy the blocks each row of the batch owns, in every cache group, to the model's tables.

    batch_idx_to_req_idx int64 [num_reqs]; both address tables uint64 [num_groups], of int32 tables
    [max_num_reqs, stride]; block_table_strides int64 [num_groups]; num_blocks int32 [num_groups,
    max_num_reqs]. Entries behind a row's blocks stay as they were. `grid` is the kernel's launch
    grid (num_groups, num_reqs_padded), the only place that tells how many rows to pad: rows from
    num_reqs on become 0. Of each row's blocks the first `num_null_blocks` (int [num_groups,
    num_reqs], None for none) become 0, the null block, as well.

    The number of blocks copied is a data-dependent shape: exact on the host, and on an accelerator
    whole rows, a group at a time.
    """
    if grid[1] > num_reqs:
        for table in _tables(dst_block_table_ptrs, block_table_strides):
            table[num_reqs : grid[1]].zero_()
    if num_reqs == 0:
        return
    slot = batch_idx_to_req_idx[:num_reqs]
    if not extents.is_host(slot):
        _gather_rows(
            _tables(src_block_table_ptrs, block_table_strides),
            _tables(dst_block_table_ptrs, block_table_strides),
            slot,
            num_blocks_ptr,
            num_null_blocks,
        )
        return
    source = memory_of(src_block_table_ptrs, torch.int32)
    target = memory_of(dst_block_table_ptrs, torch.int32)
    num_blocks = num_blocks_ptr.index_select(1, slot).long().view(-1)
    num_copied = int(num_blocks.sum())
    ends = num_blocks.cumsum(0)
    # Minus the blocks of earlier rows, so that a block's own number completes its place.
    earlier = (ends - num_blocks).view(-1, num_reqs)
    stride = block_table_strides.unsqueeze(1)
    row = torch.arange(num_reqs, device=slot.device)
    shifts = [
        (memory.offsets.unsqueeze(1) + rows * stride - earlier).view(-1)
        for memory, rows in ((source, slot), (target, row))
    ]
    block = torch.arange(num_copied, device=slot.device)
    from_place, to_place = (
        torch.repeat_interleave(shift, num_blocks, output_size=num_copied).add_(block)
        for shift in shifts
    )
    blocks = source.window.index_select(0, from_place)
    if num_null_blocks is not None:
        first_kept = (ends - num_blocks) + num_null_blocks.view(-1)
        is_null = block < torch.repeat_interleave(first_kept, num_blocks, output_size=num_copied)
        blocks.masked_fill_(is_null, 0)
    target.window.index_copy_(0, to_place, blocks)


@later_form(
    gather_block_tables,
    inserted={
        "num_reqs": (
            "num_computed_tokens_ptr",
            "sliding_window_reach_ptr",
            "block_sizes_ptr",
            "MASK_SLIDING_WINDOW",
        )
    },
)
def gather_block_tables_in_window(
    *,
    num_computed_tokens_ptr: torch.Tensor,
    sliding_window_reach_ptr: torch.Tensor,
    block_sizes_ptr: torch.Tensor,
    MASK_SLIDING_WINDOW: bool,
    batch_idx_to_req_idx: torch.Tensor,
    num_reqs: int,
    **arguments: Any,
) -> None:
    """As `gather_block_tables`; with MASK_SLIDING_WINDOW, blocks that a group's attention window
    has left behind become the null block.

    num_computed_tokens int32 [max_num_reqs], the position of a row's first scheduled token;
    sliding_window_reach int32 [num_groups], how many tokens before it are still read, 0 for all;
    block_sizes int32 [num_groups].
    """
    num_null_blocks = None
    if MASK_SLIDING_WINDOW:
        first_position = num_computed_tokens_ptr.index_select(0, batch_idx_to_req_idx[:num_reqs])
        reach = sliding_window_reach_ptr.unsqueeze(1)
        behind = (first_position - reach).clamp_(min=0) // block_sizes_ptr.unsqueeze(1)
        num_null_blocks = behind.masked_fill_(reach <= 0, 0)
    gather_block_tables(
        batch_idx_to_req_idx=batch_idx_to_req_idx,
        num_reqs=num_reqs,
        num_null_blocks=num_null_blocks,
        **arguments,
    )


def _gather_rows(
    sources: list[torch.Tensor],
    targets: list[torch.Tensor],
    slot: torch.Tensor,
    num_blocks: torch.Tensor,
    num_null_blocks: torch.Tensor | None,
) -> None:
    """`gather_block_tables` in shapes that the host knows."""
    for group, (source, target) in enumerate(zip(sources, targets, strict=True)):
        rows, into = source.index_select(0, slot), target[: slot.shape[0]]
        column = torch.arange(rows.shape[1], device=rows.device)
        if num_null_blocks is not None:
            rows.masked_fill_(column < num_null_blocks[group].unsqueeze(1), 0)
        owned = num_blocks[group].index_select(0, slot).unsqueeze(1)
        into.copy_(torch.where(column < owned, rows, into))


def _tables(addresses: torch.Tensor, strides: torch.Tensor) -> list[torch.Tensor]:
    """Each group's table, int32 [very many rows, stride]; kept on `addresses` like `memory_of`."""
    kept = getattr(addresses, "_deepinfer_tables", None)
    if kept is None:
        kept = []
        for address, stride in zip(read_once(addresses), read_once(strides), strict=True):
            # A batch has less than 2**20 rows.
            memory = tensor_at(address, stride << 20, torch.int32, addresses.device)
            kept.append(memory.view(1 << 20, stride))
        addresses._deepinfer_tables = kept
    return kept


def compute_slot_mappings(
    max_num_tokens: int,
    idx_mapping: torch.Tensor,
    query_start_loc: torch.Tensor,
    pos: torch.Tensor,
    block_table_ptrs: torch.Tensor,
    block_table_strides: torch.Tensor,
    block_sizes: torch.Tensor,
    slot_mapping_enabled: torch.Tensor,
    dcp_sharded: torch.Tensor,
    slot_mappings_ptr: torch.Tensor,
    slot_mappings_stride: int,
    cp_rank: int,
    CP_SIZE: int,
    CP_INTERLEAVE: int,
    PAD_ID: int,
    TRITON_BLOCK_SIZE: int,
) -> None:
    """Physical KV slot of every token in every cache group, PAD_ID where there is none.

    idx_mapping int64 [num_reqs], negative for a row without blocks; pos int64 [>= num_tokens];
    block_table_strides int64, block_sizes int32, slot_mapping_enabled and dcp_sharded bool, all
    [num_groups]; slot_mappings int64 [num_groups, max_num_tokens]. A token has no slot in a group
    whose mapping is disabled, nor, in a sharded group, if another context-parallel rank holds it.
    """
    num_groups, num_reqs = block_sizes.shape[0], idx_mapping.shape[0]
    slots = torch.as_strided(
        slot_mappings_ptr, (num_groups, max_num_tokens), (slot_mappings_stride, 1)
    )
    if num_reqs == 0:
        slots.fill_(PAD_ID)
        return
    rows = ragged_rows(query_start_loc, num_reqs, min(pos.shape[0], max_num_tokens))
    slots[:, rows.size :] = PAD_ID
    slot = idx_mapping.index_select(0, rows.row)
    has_slot = slot_mapping_enabled.unsqueeze(1) & (slot >= 0)
    if rows.present is not None:
        has_slot &= rows.present

    block_size = block_sizes.unsqueeze(1)
    position = pos[: rows.size].unsqueeze(0)
    if CP_SIZE != 1:
        position, is_local = _local_positions(
            position, block_size, cp_rank, CP_SIZE, CP_INTERLEAVE, dcp_sharded.unsqueeze(1)
        )
        has_slot &= is_local
    block = position // block_size
    tables = memory_of(block_table_ptrs, torch.int32)
    place = slot * block_table_strides.unsqueeze(1) + block + tables.offsets.unsqueeze(1)
    # A token without a slot reads the window's first element, which is always there.
    place.masked_fill_(~has_slot, 0)
    number = tables.window.index_select(0, place.view(-1)).view_as(place)
    found = (number.long() - block).mul_(block_size).add_(position)
    slots[:, : rows.size] = found.masked_fill_(~has_slot, PAD_ID)


def _local_positions(
    position: torch.Tensor,
    block_size: torch.Tensor,
    rank: int,
    num_ranks: int,
    interleave: int,
    is_sharded: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Where a context-parallel rank keeps each position, and whether it does.

    position [1, num_tokens], block_size and is_sharded [num_groups, 1]; returns int64 and bool
    [num_groups, num_tokens]. Runs of `interleave` tokens go round the ranks within a virtual block
    of `num_ranks` blocks. Groups not sharded hold every position where it is.
    """
    virtual_block = position // (block_size * num_ranks)
    offset = position - virtual_block * (block_size * num_ranks)
    local_offset = offset // (interleave * num_ranks) * interleave + offset % interleave
    local = torch.where(is_sharded, virtual_block * block_size + local_offset, position)
    is_local = ~is_sharded | (offset // interleave % num_ranks == rank)
    return local, is_local


def zero_kv_blocks(
    seg_addrs_ptr: torch.Tensor,
    seg_block_strides_ptr: torch.Tensor,
    seg_page_sizes_ptr: torch.Tensor,
    block_ids_ptr: torch.Tensor,
    BLOCK_SIZE: int,
) -> None:
    """Zero whole KV cache blocks in every segment of the cache.

    seg_addrs uint64, seg_block_strides and seg_page_sizes int64 [num_segments], the latter two in
    units of four bytes; block_ids int64 [num_blocks]. Loops over the segments, of which there are
    about as many as layers; each gets a strided fill, not an index per element.
    """
    block_ids = block_ids_ptr.long()
    for blocks in _segments(seg_addrs_ptr, seg_block_strides_ptr, seg_page_sizes_ptr):
        blocks.index_fill_(0, block_ids, 0)


def _segments(
    addresses: torch.Tensor, strides: torch.Tensor, page_sizes: torch.Tensor
) -> list[torch.Tensor]:
    """Each segment as int32 [very many blocks, page size]; kept on `addresses` like `memory_of`."""
    kept = getattr(addresses, "_deepinfer_segments", None)
    if kept is None:
        kept = []
        rows = zip(*map(read_once, (addresses, strides, page_sizes)), strict=True)
        for address, stride, page_size in rows:
            # No pool has 2**31 blocks: block numbers are int32 everywhere else.
            memory = tensor_at(address, stride << 31, torch.int32, addresses.device)
            kept.append(memory.as_strided((1 << 31, page_size), (stride, 1)))
        addresses._deepinfer_segments = kept
    return kept


KERNELS = {
    f"{MODULE}._gather_block_tables_kernel": gather_block_tables,
    f"{MODULE}._compute_slot_mappings_kernel": compute_slot_mappings,
    "vllm.v1.worker.utils._zero_kv_blocks_kernel": zero_kv_blocks,
}
KERNELS_SINCE = {(0, 33): {f"{MODULE}._gather_block_tables_kernel": gather_block_tables_in_window}}
