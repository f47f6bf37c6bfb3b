"""Sampling noise is a function of seed, position and token, the same as upstream's.

Claim: the uniform number behind every token's noise is bit-equal to the upstream hash's in Triton's
interpreter, noise and sampled token follow from it, and a row's noise does not depend on the batch
around it. If this breaks, a seed stops reproducing a completion, alone or in company.
"""

from __future__ import annotations

import pytest
import torch
from runner_kernels.kernel_case import RELEASES, Batch, check

from vllm_deepinfer.runner_kernels import gumbel

KERNEL = "vllm.v1.worker.gpu.sample.gumbel._gumbel_sample_kernel"
SEEDS = [0, 1, -1, 7, 2**31, 2**32 - 1, 2**62 + 12345, -(2**63), 2**63 - 1]


def sample_arguments(batch: Batch, num_rows: int, vocab_size: int, block_size: int) -> dict:
    logits = batch.normal(num_rows, vocab_size, row_padding=3)
    num_blocks = -(-vocab_size // block_size)
    valid = torch.from_numpy(batch.random.random(num_rows) < 0.85)
    mapping = batch.integers(0, batch.max_num_reqs - 1, num_rows, dtype=torch.int64)
    return {
        "local_argmax_ptr": torch.zeros(num_rows, num_blocks, dtype=torch.int64),
        "local_argmax_stride": num_blocks,
        "local_max_ptr": torch.zeros(num_rows, num_blocks),
        "local_max_stride": num_blocks,
        "logits_cache_ptr": None,
        "logits_cache_stride_0": 0,
        "logits_cache_stride_1": 0,
        "logits_cache_col_ptr": None,
        "logits_cache_source_ptr": None,
        "logits_cache_source_stride": 0,
        "logits_ptr": logits,
        "logits_stride": logits.stride(0),
        "expanded_idx_mapping_ptr": mapping.masked_fill(~valid, -1),
        "seeds_ptr": torch.tensor(SEEDS),
        "pos_ptr": batch.integers(0, 2**20, num_rows, dtype=torch.int64),
        "temp_ptr": torch.tensor([0.0, 1.0, 0.3, 1.7, 0.9, 1e-2, 5.0, 0.0, 0.7]),
        "vocab_size": vocab_size,
        "BLOCK_SIZE": block_size,
        "IS_DRAFTING": False,
        "APPLY_TEMPERATURE": False,
        "USE_FP64": False,
        "PER_TOKEN_COL": False,
    }


# Two logarithms in float32, of numpy there and of torch here, each within a few units in the last
# place; noise is at most 23.
CLOSE = {"local_max_ptr": (2e-6, 4e-6)}


@pytest.mark.parametrize("num_rows", [0, 1, 7])
@pytest.mark.parametrize(("vocab_size", "block_size"), [(8, 16), (64, 16), (101, 32)])
@pytest.mark.parametrize("is_drafting", [False, True])
@pytest.mark.parametrize("apply_temperature", [False, True])
@pytest.mark.parametrize("use_fp64", [False, True])
def test_sampled_tokens(
    oracle, num_rows, vocab_size, block_size, is_drafting, apply_temperature, use_fp64
):
    batch = Batch(num_rows + vocab_size, 0)
    arguments = sample_arguments(batch, num_rows, vocab_size, block_size)
    arguments.update(
        IS_DRAFTING=is_drafting, APPLY_TEMPERATURE=apply_temperature, USE_FP64=use_fp64
    )
    if use_fp64:
        arguments["local_max_ptr"] = arguments["local_max_ptr"].double()
    grid = (num_rows, arguments["local_max_ptr"].shape[1])
    check(oracle, KERNEL, grid, arguments, close=CLOSE)


@pytest.mark.parametrize("num_rows", [1, 7])
@pytest.mark.parametrize("per_row_column", [False, True])
@pytest.mark.parametrize("all_invalid", [False, True])
@pytest.mark.parametrize("version", RELEASES, ids=str)
def test_logits_are_kept_for_verification(oracle, num_rows, per_row_column, all_invalid, version):
    batch = Batch(num_rows, 0)
    vocab_size, num_columns = 21, 4
    arguments = sample_arguments(batch, num_rows, vocab_size, 16)
    # One row per request: a request keeps one set of logits per column.
    mapping = torch.from_numpy(batch.random.permutation(batch.max_num_reqs)[:num_rows])
    skipped = torch.from_numpy(batch.random.random(num_rows) < 0.4) | all_invalid
    cache = batch.normal(batch.max_num_reqs, num_columns, vocab_size + 5)
    source = batch.normal(num_rows, vocab_size, row_padding=2)
    arguments.update(
        expanded_idx_mapping_ptr=mapping.masked_fill(skipped, -1),
        logits_cache_ptr=cache,
        logits_cache_stride_0=cache.stride(0),
        logits_cache_stride_1=cache.stride(1),
        logits_cache_col_ptr=(
            batch.integers(0, num_columns - 1, num_rows) if per_row_column else torch.tensor(2)
        ),
        logits_cache_source_ptr=source,
        logits_cache_source_stride=source.stride(0),
        IS_DRAFTING=True,
        PER_TOKEN_COL=per_row_column,
    )
    check(oracle, KERNEL, (num_rows, 2), arguments, close=CLOSE, version=version)


def test_rows_without_a_request_keep_nothing(oracle):
    """Not even in the slot and column that a row with a request writes to."""
    batch = Batch(0, 0)
    arguments = sample_arguments(batch, 5, 21, 16)
    cache, source = batch.normal(batch.max_num_reqs, 2, 21), batch.normal(5, 21)
    arguments.update(
        expanded_idx_mapping_ptr=torch.tensor([-1, 0, -1, -1, 3]),
        logits_cache_ptr=cache,
        logits_cache_stride_0=cache.stride(0),
        logits_cache_stride_1=cache.stride(1),
        logits_cache_col_ptr=torch.tensor(1),
        logits_cache_source_ptr=source,
        logits_cache_source_stride=source.stride(0),
    )
    after = check(oracle, KERNEL, (5, 2), arguments, close=CLOSE)
    assert torch.equal(after["logits_cache_ptr"][0, 1], source[1])


def test_equal_logits_go_to_the_lowest_token(oracle):
    batch = Batch(0, 0)
    arguments = sample_arguments(batch, 3, 40, 16)
    arguments["logits_ptr"].zero_()
    arguments["temp_ptr"] = torch.zeros(batch.max_num_reqs)
    after = check(oracle, KERNEL, (3, 3), arguments)
    assert after["local_argmax_ptr"].tolist() == [[0, 16, 32]] * 3


def test_uniform_numbers_are_bit_equal_and_noise_follows(oracle):
    positions = torch.tensor([0, 1, 99, 2**20, 2**30 + 5, 3, 4, 2**31 + 1, 2**40])
    num_rows, vocab_size = len(SEEDS), 301
    arguments = {
        "out32_ptr": torch.zeros(num_rows, vocab_size),
        "out64_ptr": torch.zeros(num_rows, vocab_size, dtype=torch.float64),
        "log1p_ptr": torch.zeros(num_rows, vocab_size),
        "seeds_ptr": torch.tensor(SEEDS),
        "pos_ptr": positions,
        "vocab_size": vocab_size,
        "BLOCK": 128,
    }
    after = oracle.run("runner_kernels.noise_kernels.uniform_kernel", (num_rows,), arguments)
    seeds = torch.tensor(SEEDS)
    assert torch.equal(gumbel.uniform32(seeds, positions, vocab_size), after["out32_ptr"])
    assert torch.equal(gumbel.uniform64(seeds, positions, vocab_size), after["out64_ptr"])
    noise = gumbel.gumbel_noise(seeds, positions, vocab_size, use_fp64=False)
    expected = -torch.log(-after["log1p_ptr"])
    torch.testing.assert_close(noise, expected, rtol=1e-6, atol=1e-6)
    # By its other definition; the polynomial is off by up to 6e-7.
    exact = -torch.log(-torch.log1p(-after["out32_ptr"].double()))
    small = after["out32_ptr"] < 0.9
    torch.testing.assert_close(noise[small].double(), exact[small], rtol=1e-5, atol=1e-5)
    assert after["out32_ptr"].unique().numel() > 0.99 * num_rows * vocab_size


@pytest.mark.parametrize("use_fp64", [False, True])
@pytest.mark.parametrize("vocab_size", [1, 7, 512, 1031])
def test_a_rows_noise_does_not_depend_on_its_batch(vocab_size, use_fp64):
    seeds, positions = torch.tensor(SEEDS), torch.arange(len(SEEDS)) * 37
    together = gumbel.gumbel_noise(seeds, positions, vocab_size, use_fp64)
    for row in range(len(SEEDS)):
        alone = gumbel.gumbel_noise(seeds[row:][:1], positions[row:][:1], vocab_size, use_fp64)
        assert torch.equal(alone[0], together[row])


def test_noise_follows_the_gumbel_distribution():
    # 200,000 draws: the mean's standard error is 0.003, the variance's below 0.01.
    noise = gumbel.gumbel_noise(torch.arange(200), torch.arange(200), 1000, False)
    assert abs(noise.mean().item() - 0.5772) < 0.02
    assert abs(noise.var().item() - 1.6449) < 0.06
    assert noise.isfinite().all()
