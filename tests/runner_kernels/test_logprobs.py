"""Reported log-probabilities and ranks equal upstream's.

Claim: ranks, the choice of tokens to report and the tokens of a prompt are exactly the upstream
kernels' in Triton's interpreter; log-probabilities agree to float32 rounding, and for bfloat16
logits (which the interpreter cannot compare) with float64 arithmetic. If this breaks, clients read
wrong scores, and evaluation by prompt log-probabilities is wrong.
"""

from __future__ import annotations

import pytest
import torch
from runner_kernels.kernel_case import Batch, check

from vllm_deepinfer.runner_kernels.logprobs import topk_log_softmax

MODULE = "vllm.v1.worker.gpu.sample.logprob"


def softmax_arguments(batch: Batch, num_rows: int, vocab_size: int, topk: int, dtype) -> dict:
    logits = batch.normal(num_rows, vocab_size, row_padding=3, dtype=dtype)
    token_ids = batch.integers(0, vocab_size - 1, num_rows, topk, dtype=torch.int64)
    return {
        "output_ptr": torch.zeros(num_rows, topk),
        "logits_ptr": logits,
        "logits_stride": logits.stride(0),
        "topk_ids_ptr": token_ids,
        "topk_ids_stride": token_ids.stride(0),
        "topk": topk,
        "vocab_size": vocab_size,
        "BLOCK_SIZE": 16,
        "TOPK_BLOCK_SIZE": 4,
    }


@pytest.mark.parametrize("num_rows", [0, 1, 7])
@pytest.mark.parametrize("vocab_size", [8, 77])
@pytest.mark.parametrize("topk", [1, 6])
def test_log_probabilities(oracle, num_rows, vocab_size, topk):
    batch = Batch(num_rows, 0)
    arguments = softmax_arguments(batch, num_rows, vocab_size, topk, torch.float32)
    if num_rows:
        arguments["logits_ptr"][0, 1:] = float("-inf")
    # The sum over the vocabulary is taken in another order.
    close = {"output_ptr": (1e-6, 2e-6)}
    check(oracle, f"{MODULE}._topk_log_softmax_kernel", (num_rows,), arguments, close)


def test_log_probabilities_of_bfloat16_logits():
    arguments = softmax_arguments(Batch(0, 0), 5, 300, 4, torch.bfloat16)
    topk_log_softmax(**arguments)
    exact = arguments["logits_ptr"].double().log_softmax(1).gather(1, arguments["topk_ids_ptr"])
    torch.testing.assert_close(arguments["output_ptr"].double(), exact, rtol=1e-6, atol=2e-6)


@pytest.mark.parametrize("num_rows", [0, 1, 7])
@pytest.mark.parametrize("vocab_size", [8, 77])
def test_ranks_count_ties(oracle, num_rows, vocab_size):
    batch = Batch(num_rows, 0)
    logits = batch.normal(num_rows, vocab_size, row_padding=3)
    logits.round_()
    after = check(
        oracle,
        f"{MODULE}._ranks_kernel",
        (num_rows,),
        {
            "output_ptr": torch.zeros(num_rows, dtype=torch.int64),
            "logits_ptr": logits,
            "logits_stride": logits.stride(0),
            "token_ids_ptr": batch.integers(0, vocab_size - 1, num_rows, dtype=torch.int64),
            "vocab_size": vocab_size,
            "BLOCK_SIZE": 16,
        },
    )
    assert (after["output_ptr"] >= 1).all()


@pytest.mark.parametrize("num_rows", [0, 1, 7])
@pytest.mark.parametrize("num_topk", [0, 3])
@pytest.mark.parametrize("most_named", [0, 2, 5])
def test_reported_tokens(oracle, num_rows, num_topk, most_named):
    batch = Batch(num_rows, 0)
    num_cols = max(num_topk, most_named)
    named = batch.integers(0, 99, batch.max_num_reqs, 6)
    # Without a top-k upstream passes any int32 tensor.
    topk = batch.integers(0, 99, num_rows, num_topk) if num_topk else named
    token_ids = batch.integers(0, 99, num_rows, 1 + num_cols, dtype=torch.int64)
    valid = torch.zeros(num_rows, 1 + num_cols, dtype=torch.bool)
    check(
        oracle,
        f"{MODULE}._fill_logprob_token_ids_kernel",
        (num_rows,),
        {
            "out_token_ids_ptr": token_ids,
            "out_token_ids_stride": token_ids.stride(0),
            "out_valid_mask_ptr": valid,
            "out_valid_mask_stride": valid.stride(0),
            "sampled_token_ids_ptr": batch.integers(0, 99, num_rows, dtype=torch.int64),
            "topk_indices_ptr": topk,
            "topk_indices_stride": topk.stride(0),
            "expanded_idx_mapping_ptr": batch.integers(
                0, batch.max_num_reqs - 1, num_rows, dtype=torch.int64
            ),
            "num_per_req_token_ids_ptr": batch.integers(0, most_named, batch.max_num_reqs),
            "per_req_token_ids_ptr": named,
            "per_req_token_ids_stride": named.stride(0),
            "NUM_TOPK": num_topk,
            "PADDED_COLS": 8,
        },
    )


@pytest.mark.parametrize("num_reqs", [0, 1, 9])
@pytest.mark.parametrize("seed", range(3))
def test_prompt_tokens_are_shifted_by_one(oracle, num_reqs, seed):
    batch = Batch(seed, num_reqs)
    all_token_ids = batch.integers(0, 999, batch.max_num_reqs, batch.max_len)
    check(
        oracle,
        "vllm.v1.worker.gpu.sample.prompt_logprob._prompt_logprobs_token_ids_kernel",
        (num_reqs,),
        {
            "prompt_logprobs_token_ids_ptr": batch.integers(
                0, 99, batch.num_tokens + 3, dtype=torch.int64
            ),
            "query_start_loc_ptr": batch.query_start_loc,
            "idx_mapping_ptr": batch.idx_mapping,
            "num_computed_tokens_ptr": batch.integers(0, 30, batch.max_num_reqs),
            "all_token_ids_ptr": all_token_ids,
            "all_token_ids_stride": all_token_ids.stride(0),
            "BLOCK_SIZE": 4,
        },
    )
