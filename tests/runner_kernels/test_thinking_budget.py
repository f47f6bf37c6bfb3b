"""A thinking budget ends a reasoning section at the same token as upstream.

Claim: for markers of one to several tokens, anywhere in the prompt, the output or the drafts of a
verified position, the cached marker positions and the forced logits equal the upstream kernels' in
Triton's interpreter, on the first look at a request and on later ones. If this breaks, reasoning
runs past its budget or is cut before it.
"""

from __future__ import annotations

import pytest
import torch
from runner_kernels.kernel_case import Batch, check

MODULE = "vllm.v1.worker.gpu.sample.thinking_budget"
# Start, natural end and forced end: tokens 0 and 1 only, so that random sequences hold them.
MARKERS = {
    "single": ([0], [1], [1]),
    "longer": ([0, 1], [1, 1], [0, 1, 1]),
    "uneven": ([0, 0, 1], [1], [1, 0]),
}


def markers(name: str) -> tuple[torch.Tensor, ...]:
    return tuple(torch.tensor(marker, dtype=torch.int32) for marker in MARKERS[name])


@pytest.mark.parametrize("num_reqs", [0, 1, 9])
@pytest.mark.parametrize("name", MARKERS)
@pytest.mark.parametrize("is_first_look", [False, True])
@pytest.mark.parametrize("rare", [False, True])
def test_marker_positions(oracle, num_reqs, name, is_first_look, rare):
    batch = Batch(num_reqs + 7, num_reqs)
    start, natural_end, _ = markers(name)
    # Rare: most tokens belong to no marker, so that whole blocks hold none.
    all_token_ids = batch.integers(0, 12 if rare else 1, batch.max_num_reqs, batch.max_len)
    if is_first_look:
        last_start, last_end = torch.full((2, batch.max_num_reqs), -1, dtype=torch.int32)
        scan_pos = torch.zeros(batch.max_num_reqs, dtype=torch.int32)
    else:
        last_start = batch.integers(-1, 20, batch.max_num_reqs)
        last_end = batch.integers(-1, 20, batch.max_num_reqs)
        # Beyond the sequence's end too: the slot's last request was longer.
        scan_pos = batch.integers(0, 40, batch.max_num_reqs)
    check(
        oracle,
        f"{MODULE}._update_committed_marker_cache_kernel",
        (num_reqs,),
        {
            "req_ids_ptr": batch.idx_mapping,
            "thinking_token_budget_ptr": batch.integers(-1, 5, batch.max_num_reqs),
            "all_token_ids_ptr": all_token_ids,
            "all_token_ids_stride": all_token_ids.stride(0),
            "total_len_ptr": batch.integers(1, batch.max_len, batch.max_num_reqs),
            "cached_last_start_ptr": last_start,
            "cached_last_end_ptr": last_end,
            "cached_scan_pos_ptr": scan_pos,
            "reasoning_start_token_ids_ptr": start,
            "natural_reasoning_end_token_ids_ptr": natural_end,
            "START_LEN": len(start),
            "NATURAL_END_LEN": len(natural_end),
            "MAX_LEN": max(len(start), len(natural_end)),
            "BLOCK": 8,
        },
    )


@pytest.mark.parametrize("num_reqs", [0, 1, 7])
@pytest.mark.parametrize("name", MARKERS)
@pytest.mark.parametrize("has_drafts", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_forced_end_markers(oracle, num_reqs, name, has_drafts, seed):
    batch = Batch(seed, num_reqs)
    slot, local_pos = batch.verification_rows()
    if not has_drafts:
        slot, local_pos = batch.idx_mapping, torch.zeros(num_reqs, dtype=torch.int32)
    num_rows = slot.shape[0]
    start, natural_end, forced_end = markers(name)
    all_token_ids = batch.integers(0, 1, batch.max_num_reqs, batch.max_len)
    logits = batch.normal(num_rows, 11, row_padding=3)
    total_len = batch.integers(1, 12, batch.max_num_reqs)
    check(
        oracle,
        f"{MODULE}._thinking_budget_kernel",
        (num_rows,),
        {
            "logits_ptr": logits,
            "logits_stride": logits.stride(0),
            "expanded_idx_mapping_ptr": slot,
            "thinking_token_budget_ptr": batch.integers(-1, 4, batch.max_num_reqs),
            "all_token_ids_ptr": all_token_ids,
            "all_token_ids_stride": all_token_ids.stride(0),
            "total_len_ptr": total_len,
            "input_ids_ptr": batch.integers(0, 1, num_rows),
            "expanded_local_pos_ptr": local_pos,
            "cached_last_start_ptr": batch.integers(-1, 11, batch.max_num_reqs),
            "cached_last_end_ptr": batch.integers(-1, 6, batch.max_num_reqs),
            "reasoning_start_token_ids_ptr": start,
            "natural_reasoning_end_token_ids_ptr": natural_end,
            "reasoning_end_token_ids_ptr": forced_end,
            "START_LEN": len(start),
            "NATURAL_END_LEN": len(natural_end),
            "END_LEN": len(forced_end),
        },
    )


def test_a_spent_budget_forces_the_end_marker_token_by_token(oracle):
    start, natural_end, forced_end = (
        torch.tensor(m, dtype=torch.int32) for m in ([7], [8], [5, 8])
    )
    # One token thought, two of two, one of two forced already, and an ended section.
    sequences = [[7, 1, 0, 0], [7, 1, 1, 0], [7, 1, 1, 5], [7, 1, 8, 0]]
    all_token_ids = torch.tensor(sequences, dtype=torch.int32)
    after = check(
        oracle,
        f"{MODULE}._thinking_budget_kernel",
        (4,),
        {
            "logits_ptr": torch.zeros(4, 10),
            "logits_stride": 10,
            "expanded_idx_mapping_ptr": torch.arange(4),
            "thinking_token_budget_ptr": torch.full((4,), 2, dtype=torch.int32),
            "all_token_ids_ptr": all_token_ids,
            "all_token_ids_stride": 4,
            "total_len_ptr": torch.tensor([2, 3, 4, 3], dtype=torch.int32),
            "input_ids_ptr": torch.zeros(4, dtype=torch.int32),
            "expanded_local_pos_ptr": torch.zeros(4, dtype=torch.int32),
            "cached_last_start_ptr": torch.zeros(4, dtype=torch.int32),
            "cached_last_end_ptr": torch.tensor([-1, -1, -1, 2], dtype=torch.int32),
            "reasoning_start_token_ids_ptr": start,
            "natural_reasoning_end_token_ids_ptr": natural_end,
            "reasoning_end_token_ids_ptr": forced_end,
            "START_LEN": 1,
            "NATURAL_END_LEN": 1,
            "END_LEN": 2,
        },
    )
    forced = (after["logits_ptr"] == 1.0e9).nonzero().tolist()
    assert forced == [[1, 5], [2, 8]]
