"""The draft model reads, and verification is given, exactly what upstream's kernels prepare.

Claim: context and query blocks, cache slots, sampled rows and their padding, and the tokens that
verification looks at equal the upstream kernels' in Triton's interpreter, byte for byte, for rows
in prefill, rows with 0 to all drafts rejected, null blocks, any padding and every supported
release. If this breaks, drafts are made in the wrong context, or draft KV lands in another
request's cache.
"""

from __future__ import annotations

import pytest
import torch
from runner_kernels.kernel_case import RELEASES, Batch, check

SPEC_DECODE = "vllm.v1.worker.gpu.spec_decode"
CASES = [(seed, num_reqs) for num_reqs in (1, 2, 8) for seed in range(2)]
MAX_MODEL_LEN = 32


def dflash_arguments(
    batch: Batch, num_steps: int, from_anchor: bool, block_size: int, ranks: tuple[int, int, int]
) -> dict:
    num_reqs, max_num_reqs = batch.num_reqs, batch.max_num_reqs
    num_query = num_steps if from_anchor else num_steps + 1
    max_num_tokens = batch.num_tokens + max_num_reqs * num_query + 5
    num_rejected = batch.integers(0, 5, num_reqs) % batch.query_lens.int()
    first = batch.integers(0, MAX_MODEL_LEN - 6, num_reqs)
    starts = batch.query_start_loc[:num_reqs]
    # Some queries reach past the longest sequence the model takes.
    positions = torch.arange(batch.num_tokens) + (first - starts).repeat_interleave(
        batch.query_lens
    )
    num_ranks, rank, interleave = ranks
    # Some positions lie past the table, too.
    width = max(MAX_MODEL_LEN // (block_size * num_ranks) - 1, 1)
    table = batch.integers(0, 9, num_reqs + 1, width)
    table[torch.from_numpy(batch.random.random(table.shape) < 0.2)] = 0
    slot_rows = (max_num_reqs,)

    def filled(size: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
        return batch.integers(100, 999, size, dtype=dtype)

    return {
        "out_input_ids_ptr": filled(max_num_tokens, torch.int32),
        "out_query_positions_ptr": filled(max_num_tokens),
        "out_query_start_loc_ptr": filled(max_num_reqs + 1, torch.int32),
        "out_seq_lens_ptr": filled(max_num_reqs, torch.int32),
        "out_query_slot_mapping_ptr": filled(max_num_tokens),
        "out_context_positions_ptr": filled(max_num_tokens),
        "out_context_slot_mapping_ptr": filled(max_num_tokens),
        "out_sample_indices_ptr": filled(max_num_reqs * num_steps),
        "out_sample_pos_ptr": filled(max_num_reqs * num_steps),
        "out_sample_idx_mapping_ptr": filled(max_num_reqs * num_steps),
        "out_temperature_ptr": batch.normal(*slot_rows),
        "out_seeds_ptr": filled(max_num_reqs),
        "target_positions_ptr": positions.long(),
        "target_query_start_loc_ptr": batch.query_start_loc,
        "idx_mapping_ptr": batch.idx_mapping,
        "last_sampled_ptr": batch.integers(0, 99, max_num_reqs, 1, dtype=torch.int64),
        "next_prefill_tokens_ptr": filled(max_num_reqs, torch.int32),
        "num_sampled_ptr": batch.integers(0, 2, num_reqs),
        "num_rejected_ptr": num_rejected,
        "temperature_ptr": batch.normal(*slot_rows),
        "seeds_ptr": batch.integers(-(2**62), 2**62, *slot_rows, dtype=torch.int64),
        "block_table_ptr": table,
        "block_table_stride": table.stride(0),
        "parallel_drafting_token_id": 77,
        "block_size": block_size,
        "num_query_per_req": num_query,
        "num_speculative_steps": num_steps,
        "max_num_reqs": max_num_reqs,
        "max_num_tokens": max_num_tokens,
        "max_model_len": MAX_MODEL_LEN,
        "cp_rank": rank,
        "SAMPLE_FROM_ANCHOR": from_anchor,
        "PAD_SLOT_ID": -1,
        "CP_SIZE": num_ranks,
        "CP_INTERLEAVE": interleave,
        "BLOCK_SIZE": 4,
    }


@pytest.mark.parametrize(("seed", "num_reqs"), CASES)
@pytest.mark.parametrize("num_steps", [1, 5])
@pytest.mark.parametrize("from_anchor", [False, True])
@pytest.mark.parametrize("ranks", [(1, 0, 1), (2, 1, 1), (3, 0, 2)])
@pytest.mark.parametrize("version", RELEASES, ids=str)
def test_context_and_query_blocks(oracle, seed, num_reqs, num_steps, from_anchor, ranks, version):
    batch = Batch(seed, num_reqs)
    block_size = 6 if ranks[0] == 3 else 4
    arguments = dflash_arguments(batch, num_steps, from_anchor, block_size, ranks)
    max_num_tokens = arguments["max_num_tokens"]
    if version >= (0, 33):
        arguments["out_is_padding_ptr"] = batch.integers(0, 1, max_num_tokens).bool()
    longest = int(batch.query_lens.max()) + arguments["num_query_per_req"]
    grid = (num_reqs, -(-longest // arguments["BLOCK_SIZE"]))
    kernel = f"{SPEC_DECODE}.dflash.speculator._prepare_dflash_inputs_kernel"
    after = check(oracle, kernel, grid, arguments, version=version)
    if num_reqs == 8 and num_steps == 5:
        # Some tokens have a slot and some do not.
        num_queries = num_reqs * arguments["num_query_per_req"]
        for slots, count in (
            (after["out_query_slot_mapping_ptr"], num_queries),
            (after["out_context_slot_mapping_ptr"], batch.num_tokens),
        ):
            assert 0 < (slots[:count] >= 0).sum() < count


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("num_reqs", [0, 1, 8])
def test_rows_of_logits_get_their_drafts(oracle, seed, num_reqs):
    batch = Batch(seed, num_reqs)
    slot, local_pos = batch.verification_rows()
    num_logits = slot.shape[0]
    check(
        oracle,
        f"{SPEC_DECODE}.rejection_sampler._gather_draft_sampled_kernel",
        (-(-num_logits // 8),),
        {
            "draft_sampled_ptr": batch.integers(100, 999, num_logits + 2),
            "pos_ptr": batch.integers(100, 999, num_logits + 2, dtype=torch.int64),
            "input_ids_ptr": batch.integers(0, 99, 40),
            # Positions on both sides of the prefill's end.
            "positions_ptr": batch.integers(0, 12, 40, dtype=torch.int64),
            "logits_indices_ptr": batch.integers(0, 39, num_logits, dtype=torch.int64),
            "expanded_idx_mapping_ptr": slot,
            "expanded_local_pos_ptr": local_pos,
            "prefill_len_ptr": batch.integers(0, 10, batch.max_num_reqs),
            "num_logits": num_logits,
            "BLOCK_SIZE": 8,
        },
    )
