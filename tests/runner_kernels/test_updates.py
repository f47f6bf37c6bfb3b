"""Request state after a step, and staged writes, equal upstream's.

Claim: sampled tokens, counters, output statistics and staged rows end up exactly as the upstream
kernels leave them in Triton's interpreter, rows marked to be skipped included, and nothing else is
written. If this breaks, requests continue from the wrong token or write into each other.
"""

from __future__ import annotations

import pytest
import torch
from runner_kernels.interpreter_oracle import PointerTable
from runner_kernels.kernel_case import RELEASES, Batch, check

INPUT_BATCH = "vllm.v1.worker.gpu.input_batch"
CASES = [(seed, num_reqs) for num_reqs in (0, 1, 2, 9) for seed in range(3)]
VOCAB_SIZE = 50


@pytest.mark.parametrize(("seed", "num_reqs"), CASES)
@pytest.mark.parametrize("has_counts", [False, True])
@pytest.mark.parametrize("has_query", [False, True])
@pytest.mark.parametrize("width", [1, 6])
@pytest.mark.parametrize("version", RELEASES, ids=str)
def test_sampled_tokens_are_appended(oracle, seed, num_reqs, has_counts, has_query, width, version):
    batch = Batch(seed, num_reqs)
    skipped = torch.from_numpy(batch.random.random(num_reqs) < 0.3)
    num_sampled = batch.integers(0, width, num_reqs)
    sampled = batch.integers(0, VOCAB_SIZE - 1, num_reqs, width + 2, dtype=torch.int64)[:, :width]
    # What is behind the samples that count must not be looked at.
    sampled[torch.arange(width) >= num_sampled.unsqueeze(1)] = -1
    counts = batch.integers(0, 3, batch.max_num_reqs, VOCAB_SIZE)
    all_token_ids = batch.integers(0, 99, batch.max_num_reqs, batch.max_len)
    drafts = {}
    if version >= (0, 33):
        num_drafts = width - 1
        next_drafts = batch.integers(0, 99, num_reqs, num_drafts, dtype=torch.int64)
        drafts = {
            "draft_tokens_ptr": next_drafts if num_drafts else None,
            "draft_tokens_out_ptr": batch.integers(
                0, 99, batch.max_num_reqs, num_drafts, dtype=torch.int64
            ),
            "num_draft_tokens": num_drafts,
        }
    check(
        oracle,
        f"{INPUT_BATCH}._post_update_kernel",
        (num_reqs,),
        {
            "idx_mapping_ptr": batch.idx_mapping.masked_fill(skipped, -1),
            "num_computed_tokens_ptr": batch.integers(0, 30, batch.max_num_reqs),
            "last_sampled_tokens_ptr": batch.integers(
                0, 99, batch.max_num_reqs, 1, dtype=torch.int64
            ),
            "output_bin_counts_ptr": counts if has_counts else None,
            "output_bin_counts_stride": counts.stride(0) if has_counts else 0,
            "sampled_tokens_ptr": sampled,
            "sampled_tokens_stride": sampled.stride(0),
            "num_sampled_ptr": num_sampled,
            "num_rejected_ptr": batch.integers(0, 3, num_reqs),
            "query_start_loc_ptr": batch.query_start_loc if has_query else None,
            "all_token_ids_ptr": all_token_ids,
            "all_token_ids_stride": all_token_ids.stride(0),
            "total_len_ptr": batch.integers(1, 30, batch.max_num_reqs),
            **drafts,
        },
        version=version,
    )


def staged_runs(batch: Batch, num_writes: int, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Runs of 0 to 5 values, at most two to a row and not overlapping there."""
    rows = batch.random.permutation(2 * batch.max_num_reqs)[:num_writes]
    lengths = batch.integers(0, 5, num_writes)
    return {
        "write_indices_ptr": torch.from_numpy(rows // 2).int(),
        "write_starts_ptr": torch.from_numpy(rows % 2 * 10).int()
        + batch.integers(0, 5, num_writes),
        "write_contents_ptr": batch.integers(0, 999, int(lengths.sum())).to(dtype),
        "write_cu_lens_ptr": lengths.cumsum(0).int(),
    }


@pytest.mark.parametrize("num_writes", [1, 2, 11])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.float32])
@pytest.mark.parametrize("row_padding", [0, 3])
@pytest.mark.parametrize("version", RELEASES, ids=str)
def test_staged_runs_land_in_their_rows(oracle, num_writes, dtype, row_padding, version):
    batch = Batch(num_writes, 1)
    output = batch.integers(0, 9, batch.max_num_reqs, 20 + row_padding).to(dtype)[:, :20]
    check(
        oracle,
        "vllm.v1.worker.gpu.buffer_utils._apply_write_kernel",
        (num_writes, 2) if version >= (0, 33) else (num_writes,),
        {
            "output_ptr": output,
            "output_stride": output.stride(0),
            **staged_runs(batch, num_writes, dtype),
            "write_group_ids_ptr": None,
            "BLOCK_SIZE": 4,
            "MULTI_GROUP": False,
        },
        version=version,
    )


@pytest.mark.parametrize("num_writes", [1, 2, 11])
@pytest.mark.parametrize("num_groups", [2, 10])
def test_staged_runs_land_in_their_group(oracle, num_writes, num_groups):
    batch = Batch(num_writes, 1)
    tables = [batch.integers(0, 9, batch.max_num_reqs, 20 + group) for group in range(num_groups)]
    check(
        oracle,
        "vllm.v1.worker.gpu.buffer_utils._apply_write_kernel",
        (num_writes,),
        {
            "output_ptr": PointerTable(tables),
            "output_stride": torch.tensor([table.stride(0) for table in tables]),
            **staged_runs(batch, num_writes, torch.int32),
            "write_group_ids_ptr": batch.integers(0, num_groups - 1, num_writes),
            "BLOCK_SIZE": 4,
            "MULTI_GROUP": True,
        },
    )
