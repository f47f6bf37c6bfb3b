"""KV blocks and slots of a batch are found exactly where upstream finds them.

Claim: block tables, slot mappings (with and without context parallelism, disabled groups, rows
without blocks) and zeroed blocks equal the upstream kernels' in Triton's interpreter, byte for byte
and without touching a byte more, although the kernels are told addresses only. If this breaks,
requests read or overwrite each other's KV cache.
"""

from __future__ import annotations

import pytest
import torch
from runner_kernels.interpreter_oracle import PointerTable
from runner_kernels.kernel_case import RELEASES, Batch, check

from vllm_deepinfer.runner_kernels.pointers import tensor_at

MODULE = "vllm.v1.worker.gpu.block_table"
CASES = [(seed, num_reqs) for num_reqs in (0, 1, 2, 8) for seed in range(3)]


class Groups:
    """Block tables of some cache groups, with block sizes 2, 4, 6, ... tokens."""

    def __init__(self, batch: Batch, num_groups: int) -> None:
        self.block_sizes = torch.arange(2, 2 * num_groups + 1, 2, dtype=torch.int32)
        widths = [batch.max_len // int(size) + 3 for size in self.block_sizes]
        self.tables = [batch.integers(0, 999, batch.max_num_reqs, width) for width in widths]
        self.strides = torch.tensor(widths)


@pytest.mark.parametrize(("seed", "num_reqs"), CASES)
@pytest.mark.parametrize("num_groups", [1, 3, 10])
@pytest.mark.parametrize("num_padded", [0, 1])
def test_each_row_gets_its_blocks(oracle, seed, num_reqs, num_groups, num_padded):
    batch = Batch(seed, num_reqs)
    groups = Groups(batch, num_groups)
    num_blocks = batch.integers(0, 999, num_groups, batch.max_num_reqs)
    num_blocks %= groups.strides.unsqueeze(1) + 1
    arguments = {
        "batch_idx_to_req_idx": batch.idx_mapping,
        "src_block_table_ptrs": PointerTable(groups.tables),
        "dst_block_table_ptrs": PointerTable(
            [batch.integers(0, 999, *table.shape) for table in groups.tables]
        ),
        "block_table_strides": groups.strides,
        "num_blocks_ptr": num_blocks.int(),
        "num_blocks_stride": num_blocks.stride(0),
        "num_reqs": num_reqs,
        "BLOCK_SIZE": 4,
    }
    kernel, grid = f"{MODULE}._gather_block_tables_kernel", (num_groups, num_reqs + num_padded)
    if (0, 32) in RELEASES:
        check(oracle, kernel, grid, arguments, version=(0, 32))
    window = {
        "num_computed_tokens_ptr": batch.integers(0, batch.max_len, batch.max_num_reqs),
        # No window in the first group, then windows of different lengths.
        "sliding_window_reach_ptr": torch.arange(num_groups, dtype=torch.int32) * 5,
        "block_sizes_ptr": groups.block_sizes,
    }
    for masks in (False, True):
        arguments.update(window, MASK_SLIDING_WINDOW=masks)
        check(oracle, kernel, grid, arguments, version=(0, 33))


@pytest.mark.parametrize(("seed", "num_reqs"), CASES)
@pytest.mark.parametrize("num_groups", [1, 5])
@pytest.mark.parametrize(("num_ranks", "rank", "interleave"), [(1, 0, 1), (2, 1, 1), (3, 0, 2)])
def test_each_token_gets_its_slot(oracle, seed, num_reqs, num_groups, num_ranks, rank, interleave):
    batch = Batch(seed, num_reqs)
    groups = Groups(batch, num_groups)
    positions = batch.integers(0, batch.max_len - 1, batch.num_tokens + 3, dtype=torch.int64)
    without_blocks = torch.from_numpy(batch.random.random(num_reqs) < 0.2)
    max_num_tokens = batch.num_tokens + 6
    slots = batch.integers(0, 99, num_groups, max_num_tokens + 2, dtype=torch.int64)
    check(
        oracle,
        f"{MODULE}._compute_slot_mappings_kernel",
        (num_groups, num_reqs + 1),
        {
            "max_num_tokens": max_num_tokens,
            "idx_mapping": batch.idx_mapping.masked_fill(without_blocks, -1),
            "query_start_loc": batch.query_start_loc,
            "pos": positions,
            "block_table_ptrs": PointerTable(groups.tables),
            "block_table_strides": groups.strides,
            "block_sizes": groups.block_sizes,
            "slot_mapping_enabled": torch.from_numpy(batch.random.random(num_groups) < 0.7),
            "dcp_sharded": torch.from_numpy(batch.random.random(num_groups) < 0.7),
            "slot_mappings_ptr": slots,
            "slot_mappings_stride": slots.stride(0),
            "cp_rank": rank,
            "CP_SIZE": num_ranks,
            "CP_INTERLEAVE": interleave,
            "PAD_ID": -1,
            "TRITON_BLOCK_SIZE": 4,
        },
    )


@pytest.mark.parametrize("num_blocks", [1, 4])
@pytest.mark.parametrize("num_segments", [1, 3])
def test_whole_blocks_are_zeroed_in_every_segment(oracle, num_blocks, num_segments):
    batch = Batch(num_blocks, 1)
    # Blocks of 16, 32, ... elements, of which a segment owns all, or all but 3, ...
    segments = [batch.integers(1, 9, 10, 16 * (s + 1)) for s in range(num_segments)]
    strides = torch.tensor([segment.stride(0) for segment in segments])
    check(
        oracle,
        "vllm.v1.worker.utils._zero_kv_blocks_kernel",
        (num_blocks, num_segments, 8),
        {
            "seg_addrs_ptr": PointerTable(segments),
            "seg_block_strides_ptr": strides,
            "seg_page_sizes_ptr": strides - 3 * torch.arange(num_segments),
            "block_ids_ptr": torch.from_numpy(batch.random.permutation(10)[:num_blocks]),
            "BLOCK_SIZE": 8,
        },
    )


def test_an_address_without_an_element_is_refused():
    tensor = torch.zeros(4, dtype=torch.int32)
    for address in (0, -4, tensor.data_ptr() + 2):
        with pytest.raises(ValueError, match="address"):
            tensor_at(address, 1, torch.int32, tensor.device)


def test_memory_at_an_address_is_shared_not_copied():
    tensor = torch.arange(6, dtype=torch.int32)
    view = tensor_at(tensor.data_ptr() + 8, 4, torch.int32, tensor.device)
    view[0] = -1
    assert tensor.tolist() == [0, 1, -1, 3, 4, 5]
