"""The model's input batch is prepared exactly as upstream's Triton kernels prepare it.

Claim: for prefill, chunked prefill, decode and verification rows, any assignment of rows to request
slots and any padding, every output (and every untouched byte) equals the upstream kernel's in
Triton's interpreter, with exact shapes and with the shapes an accelerator would use. If this
breaks, the model sees the wrong tokens or positions.
"""

from __future__ import annotations

import pytest
import torch
from runner_kernels.kernel_case import Batch, check

MODULE = "vllm.v1.worker.gpu.input_batch"
CASES = [(seed, num_reqs) for num_reqs in (0, 1, 2, 9) for seed in range(3)]


@pytest.mark.parametrize(("seed", "num_reqs"), CASES)
@pytest.mark.parametrize("num_lookahead", [1, 3])
def test_prefill_rows_get_their_prompt_tokens(oracle, seed, num_reqs, num_lookahead):
    batch = Batch(seed, num_reqs)
    num_computed = batch.integers(0, 20, batch.max_num_reqs)
    # Below, at and above what is computed: rows in, at the end of and past their prefill.
    prefill_lens = (num_computed + batch.integers(-2, 8, batch.max_num_reqs)).clamp(min=0)
    all_token_ids = batch.integers(0, 999, batch.max_num_reqs, batch.max_len)
    check(
        oracle,
        f"{MODULE}._prepare_prefill_inputs_kernel",
        (num_reqs,),
        {
            "input_ids_ptr": batch.integers(0, 999, batch.num_tokens + 7),
            "next_prefill_tokens_ptr": batch.integers(0, 999, num_lookahead, batch.max_num_reqs),
            "next_prefill_tokens_stride": batch.max_num_reqs,
            "num_lookahead": num_lookahead,
            "idx_mapping_ptr": batch.idx_mapping,
            "query_start_loc_ptr": batch.query_start_loc,
            "all_token_ids_ptr": all_token_ids,
            "all_token_ids_stride": all_token_ids.stride(0),
            "prefill_lens_ptr": prefill_lens,
            "num_computed_tokens_ptr": num_computed,
            "BLOCK_SIZE": 4,
            "LOOKAHEAD_BLOCK": 4,
        },
    )


@pytest.mark.parametrize(("seed", "num_reqs"), CASES)
def test_positions_and_sequence_lengths(oracle, seed, num_reqs):
    batch = Batch(seed, num_reqs)
    after = check(
        oracle,
        f"{MODULE}._prepare_pos_seq_lens_kernel",
        (num_reqs + 1,),
        {
            "pos_ptr": batch.integers(0, 99, batch.num_tokens + 7, dtype=torch.int64),
            "seq_lens_ptr": batch.integers(1, 99, batch.max_num_reqs),
            "idx_mapping_ptr": batch.idx_mapping,
            "query_start_loc_ptr": batch.query_start_loc,
            "num_computed_tokens_ptr": batch.integers(0, 20, batch.max_num_reqs),
            "max_num_reqs": batch.max_num_reqs,
            "BLOCK_SIZE": 4,
        },
    )
    assert not after["seq_lens_ptr"][num_reqs:].any()


@pytest.mark.parametrize(("seed", "num_reqs"), CASES)
@pytest.mark.parametrize(("num_new", "max_drafts"), [(1, 0), (1, 5), (0, 5)])
def test_sampled_and_draft_tokens_join_the_input(oracle, seed, num_reqs, num_new, max_drafts):
    batch = Batch(seed, num_reqs)
    num_logits = torch.minimum(
        batch.integers(num_new, max_drafts + num_new, num_reqs), batch.query_lens
    ).clamp(min=num_new)
    cu_num_logits = torch.zeros(num_reqs + 1, dtype=torch.int32)
    cu_num_logits[1:] = num_logits.cumsum(0)
    seq_lens = batch.integers(6, 20, batch.max_num_reqs)
    prefill_len = batch.integers(0, 30, batch.max_num_reqs)
    # Also rows whose logits begin within the prompt's tail.
    prefill_len[batch.idx_mapping] = (seq_lens[:num_reqs] + batch.integers(-8, 2, num_reqs)).clamp(
        min=0
    )
    draft_tokens = batch.integers(0, 999, batch.max_num_reqs, max_drafts, dtype=torch.int64)
    check(
        oracle,
        f"{MODULE}._combine_sampled_and_draft_tokens_kernel",
        (num_reqs,),
        {
            "input_ids_ptr": batch.integers(0, 999, batch.num_tokens + 7),
            "idx_mapping_ptr": batch.idx_mapping,
            "last_sampled_tokens_ptr": batch.integers(
                0, 999, batch.max_num_reqs, 1, dtype=torch.int64
            ),
            "query_start_loc_ptr": batch.query_start_loc,
            "seq_lens_ptr": seq_lens,
            "prefill_len_ptr": prefill_len,
            "draft_tokens_ptr": draft_tokens,
            "draft_tokens_stride": draft_tokens.stride(0),
            "cu_num_logits_ptr": cu_num_logits,
            "logits_indices_ptr": torch.zeros(int(cu_num_logits[-1]), dtype=torch.int64),
            "BLOCK_SIZE": 8,
            "NUM_NEW_SAMPLED_TOKENS": num_new,
        },
    )


@pytest.mark.parametrize(("seed", "num_reqs"), CASES)
def test_unfinished_prefills_sample_nothing(oracle, seed, num_reqs):
    batch = Batch(seed, num_reqs)
    num_logits = batch.integers(1, 6, num_reqs)
    cu_num_logits = torch.zeros(num_reqs + 1, dtype=torch.int32)
    cu_num_logits[1:] = num_logits.cumsum(0)
    check(
        oracle,
        f"{MODULE}._get_num_sampled_and_rejected_kernel",
        (num_reqs,),
        {
            "num_sampled_ptr": torch.minimum(batch.integers(1, 6, num_reqs), num_logits),
            "num_rejected_ptr": torch.zeros(num_reqs, dtype=torch.int32),
            "seq_lens_ptr": batch.integers(1, 9, batch.max_num_reqs),
            "cu_num_logits_ptr": cu_num_logits,
            "idx_mapping_ptr": batch.idx_mapping,
            "prefill_len_ptr": batch.integers(1, 9, batch.max_num_reqs),
        },
    )


@pytest.mark.parametrize(("seed", "num_reqs"), CASES)
def test_rows_are_repeated_once_per_logit(oracle, seed, num_reqs):
    batch = Batch(seed, num_reqs)
    cu_num_logits = torch.zeros(num_reqs + 1, dtype=torch.int32)
    cu_num_logits[1:] = batch.integers(0, 6, num_reqs).cumsum(0)
    num_logits = int(cu_num_logits[-1])
    check(
        oracle,
        f"{MODULE}._expand_idx_mapping_kernel",
        (num_reqs,),
        {
            "idx_mapping_ptr": batch.idx_mapping,
            "expanded_idx_mapping_ptr": torch.zeros(num_logits, dtype=torch.int64),
            "expanded_local_pos_ptr": torch.zeros(num_logits, dtype=torch.int32),
            "cu_num_logits_ptr": cu_num_logits,
            "BLOCK_SIZE": 8,
        },
    )
