"""Penalties see the same prompt and output tokens as upstream, and weigh them the same.

Claim: token statistics and penalised logits equal the upstream kernels' in Triton's interpreter bit
for bit, drafts ahead of a verified position included, and rows without penalties keep their bytes.
If this breaks, repetition control differs from vLLM elsewhere, or leaks between requests.
"""

from __future__ import annotations

import pytest
import torch
from runner_kernels.kernel_case import Batch, check

MODULE = "vllm.v1.worker.gpu.sample.penalties"


@pytest.mark.parametrize("num_reqs", [0, 1, 6])
@pytest.mark.parametrize("vocab_size", [32, 77])
@pytest.mark.parametrize("has_drafts", [False, True])
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_penalised_logits(oracle, num_reqs, vocab_size, has_drafts, share):
    batch = Batch(num_reqs + vocab_size, num_reqs)
    slot, local_pos = batch.verification_rows()
    if not has_drafts:
        slot, local_pos = batch.idx_mapping, torch.zeros(num_reqs, dtype=torch.int32)
    num_rows = slot.shape[0]
    logits = batch.normal(num_rows, vocab_size, row_padding=3)
    if num_rows:
        logits[0, 3] = float("-inf")
    used = torch.from_numpy(batch.random.random((3, batch.max_num_reqs)) < share)
    penalties = torch.from_numpy(batch.random.uniform(0.2, 2.0, (3, batch.max_num_reqs))).float()
    penalties = torch.where(used, penalties, torch.tensor([[1.0], [0.0], [0.0]]))
    num_words = (vocab_size + 31) // 32
    prompt_bin_mask = batch.integers(-(2**31), 2**31 - 1, batch.max_num_reqs, num_words)
    counts = batch.integers(-3, 3, batch.max_num_reqs, vocab_size).clamp(min=0)
    check(
        oracle,
        f"{MODULE}._penalties_kernel",
        (num_rows, 2),
        {
            "logits_ptr": logits,
            "logits_stride": logits.stride(0),
            "expanded_idx_mapping_ptr": slot,
            # Drafts may be placeholders outside the vocabulary.
            "token_ids_ptr": batch.integers(-1, vocab_size + 2, num_rows),
            "expanded_local_pos_ptr": local_pos,
            "repetition_penalty_ptr": penalties[0],
            "frequency_penalty_ptr": penalties[1],
            "presence_penalty_ptr": penalties[2],
            "prompt_bin_mask_ptr": prompt_bin_mask,
            "prompt_bin_mask_stride": prompt_bin_mask.stride(0),
            "output_bin_counts_ptr": counts,
            "output_bin_counts_stride": counts.stride(0),
            "vocab_size": vocab_size,
            "BLOCK_SIZE": 64,
        },
    )


@pytest.mark.parametrize("num_new", [0, 1, 5])
@pytest.mark.parametrize("vocab_size", [32, 77])
@pytest.mark.parametrize("resumes", [False, True])
def test_statistics_of_new_requests(oracle, num_new, vocab_size, resumes):
    batch = Batch(num_new + vocab_size, num_new)
    prompt_len = batch.integers(1, 25, batch.max_num_reqs)
    # A resumed request also brings tokens it had generated before.
    prefill_len = prompt_len + batch.integers(0, 12 if resumes else 0, batch.max_num_reqs)
    all_token_ids = batch.integers(0, vocab_size - 1, batch.max_num_reqs, batch.max_len)
    prompt_bin_mask = torch.zeros(batch.max_num_reqs, (vocab_size + 31) // 32, dtype=torch.int32)
    counts = batch.integers(0, 3, batch.max_num_reqs, vocab_size)
    check(
        oracle,
        f"{MODULE}._bincount_kernel",
        (num_new, 5),
        {
            "expanded_idx_mapping_ptr": batch.idx_mapping,
            "all_token_ids_ptr": all_token_ids,
            "all_token_ids_stride": all_token_ids.stride(0),
            "prompt_len_ptr": prompt_len,
            "prefill_len_ptr": prefill_len,
            "prompt_bin_mask_ptr": prompt_bin_mask,
            "prompt_bin_mask_stride": prompt_bin_mask.stride(0),
            "output_bin_counts_ptr": counts,
            "output_bin_counts_stride": counts.stride(0),
            "BLOCK_SIZE": 8,
        },
    )
