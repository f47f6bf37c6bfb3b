"""Temperature, min-p, NaN count, sampling mask and trace replay equal upstream's.

Claim: for rows of any requests, vocabularies that do not fill the last block, and logits whose rows
are padded, these kernels' torch forms change and leave exactly the bytes the upstream kernels do in
Triton's interpreter. If this breaks, requests are sampled from another distribution than asked for.
"""

from __future__ import annotations

import pytest
import torch
from runner_kernels.kernel_case import Batch, check

SAMPLE = "vllm.v1.worker.gpu.sample"
CASES = [(num_rows, vocab_size) for num_rows in (0, 1, 11) for vocab_size in (8, 37)]
BLOCK_SIZE = 16


def logits_arguments(batch: Batch, num_rows: int, vocab_size: int, **options) -> dict:
    logits = batch.normal(num_rows, vocab_size, row_padding=3, **options)
    return {"logits_ptr": logits, "logits_stride": logits.stride(0)}


def slots(batch: Batch, num_rows: int) -> torch.Tensor:
    """Request slots that between them use every parameter of the lists below."""
    return torch.arange(num_rows) % batch.max_num_reqs


@pytest.mark.parametrize(("num_rows", "vocab_size"), CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_temperature_divides_each_row(oracle, num_rows, vocab_size, dtype):
    batch = Batch(num_rows, 0)
    arguments = logits_arguments(batch, num_rows, vocab_size, dtype=dtype)
    if num_rows:
        arguments["logits_ptr"][0, 3] = float("-inf")
    check(
        oracle,
        f"{SAMPLE}.gumbel._temperature_kernel",
        (num_rows, 3),
        {
            **arguments,
            "expanded_idx_mapping_ptr": slots(batch, num_rows),
            "temperature_ptr": torch.tensor([0.0, 1.0, 0.3, 1.7, 0.9, 1e-2, 5.0, 0.0, 0.7]),
            "vocab_size": vocab_size,
            "BLOCK_SIZE": BLOCK_SIZE,
        },
        # The interpreter truncates where torch and compiled Triton round to the nearest bfloat16.
        close={"logits_ptr": (2**-7, 0.0)} if dtype == torch.bfloat16 else None,
    )


@pytest.mark.parametrize(("num_rows", "vocab_size"), CASES)
def test_min_p_bans_unlikely_tokens(oracle, num_rows, vocab_size):
    batch = Batch(num_rows, 0)
    # Multiples of 1/4 stay clear of the threshold, whose logarithm may differ in its last bit.
    arguments = logits_arguments(batch, num_rows, vocab_size)
    arguments["logits_ptr"].mul_(4).round_().div_(4)
    if num_rows:
        arguments["logits_ptr"][-1, ::2] = float("-inf")
    check(
        oracle,
        f"{SAMPLE}.min_p._min_p_kernel",
        (num_rows,),
        {
            **arguments,
            "expanded_idx_mapping_ptr": slots(batch, num_rows),
            "min_p_ptr": torch.tensor([0.0, 0.1, 0.5, 0.03, 1.0, 0.0, 0.9, 0.2, 1e-4]),
            "vocab_size": vocab_size,
            "BLOCK_SIZE": BLOCK_SIZE,
        },
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_nans_are_counted(dtype):
    # Not against the interpreter: this kernel calls a function of CUDA's libdevice.
    from vllm_deepinfer.runner_kernels.sampling import num_nans

    logits = Batch(0, 0).normal(4, 37, row_padding=3, dtype=dtype)
    logits[1, 5] = logits[1, 36] = logits[3, 0] = float("nan")
    logits[2, 7] = float("inf")
    counts = torch.full((4,), 9, dtype=torch.int32)
    num_nans(logits, logits.stride(0), counts, 37, BLOCK_SIZE)
    assert counts.tolist() == [0, 2, 0, 1]


@pytest.mark.parametrize(("num_reqs", "vocab_size"), CASES)
@pytest.mark.parametrize("rows_per_request", [1, 4])
@pytest.mark.parametrize("max_num_kept", [1, 5, 37])
def test_sampling_masks_list_the_finite_tokens(
    oracle, num_reqs, vocab_size, rows_per_request, max_num_kept
):
    batch = Batch(num_reqs, 0)
    num_sampled = batch.integers(0, rows_per_request, num_reqs)
    cu_num_logits = torch.zeros(num_reqs + 1, dtype=torch.int32)
    cu_num_logits[1:] = (num_sampled + 1).cumsum(0)
    logits = batch.normal(int(cu_num_logits[-1]) + 1, vocab_size, row_padding=3)
    logits[torch.from_numpy(batch.random.random(logits.shape) < 0.6)] = float("-inf")
    logits[0, 1], logits[0, 2] = float("inf"), float("nan")
    num_rows = num_reqs * rows_per_request
    token_ids = batch.integers(0, 99, num_rows, max_num_kept)
    packed_mask = batch.integers(0, 255, num_rows, (vocab_size + 7) // 8, dtype=torch.uint8)
    check(
        oracle,
        f"{SAMPLE}.output._compact_sampling_mask_kernel",
        (num_rows,),
        {
            "logits_ptr": logits,
            "logits_row_stride": logits.stride(0),
            "logits_col_stride": 1,
            "cu_num_logits_ptr": cu_num_logits,
            "num_sampled_tokens_ptr": num_sampled,
            "token_ids_ptr": token_ids,
            "token_ids_row_stride": token_ids.stride(0),
            "packed_mask_ptr": packed_mask,
            "packed_mask_row_stride": packed_mask.stride(0),
            "counts_ptr": batch.integers(0, 99, num_rows),
            "vocab_size": vocab_size,
            "max_num_kept": max_num_kept,
            "ROWS_PER_REQUEST": rows_per_request,
            "BLOCK_SIZE": BLOCK_SIZE,
        },
    )


@pytest.mark.parametrize("num_reqs", [0, 1, 9])
def test_traces_replace_sampled_tokens(oracle, num_reqs):
    batch = Batch(num_reqs, num_reqs)
    skipped = torch.from_numpy(batch.random.random(num_reqs) < 0.3)
    traces = batch.integers(100, 999, batch.max_num_reqs, batch.max_len)
    check(
        oracle,
        f"{SAMPLE}.trace_replay._trace_replay_kernel",
        (num_reqs,),
        {
            "sampled_ptr": batch.integers(0, 99, num_reqs, dtype=torch.int64),
            "idx_mapping_ptr": batch.idx_mapping.masked_fill(skipped, -1),
            "trace_token_ids_ptr": traces,
            "trace_token_ids_stride": traces.stride(0),
            "trace_len_ptr": batch.integers(0, 6, batch.max_num_reqs),
            "total_len_ptr": batch.integers(3, 12, batch.max_num_reqs),
            "prompt_len_ptr": batch.integers(4, 8, batch.max_num_reqs),
        },
    )
