"""Allowed tokens, biases, minimum length, bad words and grammar masks equal upstream's.

Claim: for every mixture of rules in a batch the torch forms leave exactly the logits the upstream
kernels leave in Triton's interpreter, drafts ahead of a verified position included. If this breaks,
a request emits a token it forbade, or loses one to a neighbour's rule.
"""

from __future__ import annotations

import pytest
import torch
from runner_kernels.kernel_case import Batch, check, run_ours
from torch.utils._python_dispatch import TorchDispatchMode

SAMPLE = "vllm.v1.worker.gpu.sample"
NUM_ENTRIES = 8


def token_lists(batch: Batch, vocab_size: int, share: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Distinct tokens per request and how many of them count, 0 for all but a `share`."""
    tokens = torch.stack(
        [
            torch.from_numpy(batch.random.permutation(vocab_size)[:NUM_ENTRIES])
            for _ in range(batch.max_num_reqs)
        ]
    ).int()
    counts = batch.integers(1, NUM_ENTRIES, batch.max_num_reqs)
    unused = torch.from_numpy(batch.random.random(batch.max_num_reqs) >= share)
    return tokens, counts.masked_fill(unused, 0)


@pytest.mark.parametrize("num_rows", [0, 1, 7])
@pytest.mark.parametrize("vocab_size", [8, 37])
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("restores", [False, True])
def test_allowed_biased_and_stop_tokens(oracle, num_rows, vocab_size, share, restores):
    batch = Batch(num_rows + vocab_size, 0)
    logits = batch.normal(num_rows, vocab_size, row_padding=3)
    allowed, num_allowed = token_lists(batch, vocab_size, share)
    biased, num_biased = token_lists(batch, vocab_size, share)
    stops, num_stops = token_lists(batch, vocab_size, share)
    # Requests of which nothing but stop tokens is left, and which want them back.
    same = slice(0, batch.max_num_reqs, 2)
    stops[same], num_stops[same] = allowed[same], num_allowed[same]
    wants_stops_back = batch.integers(0, 1, batch.max_num_reqs)
    min_lens = batch.integers(5, 25, batch.max_num_reqs)
    wants_stops_back[same], min_lens[same] = 1, 25
    slot = batch.integers(0, batch.max_num_reqs - 1, num_rows, dtype=torch.int64)
    if num_rows:
        # Neither of the two is brought back.
        logits[0, :4], logits[-1, 4:] = float("-inf"), float("inf")
        slot[0] = slot[-1] = 0
    bias = batch.normal(batch.max_num_reqs, NUM_ENTRIES)
    check(
        oracle,
        f"{SAMPLE}.logit_bias._bias_kernel",
        (num_rows,),
        {
            "logits_ptr": logits,
            "logits_stride": logits.stride(0),
            "vocab_size": vocab_size,
            "expanded_idx_mapping_ptr": slot,
            "num_allowed_token_ids_ptr": num_allowed,
            "allowed_token_ids_ptr": allowed,
            "allowed_token_ids_stride": allowed.stride(0),
            "num_logit_bias_ptr": num_biased,
            "bias_token_ids_ptr": biased,
            "bias_token_ids_stride": biased.stride(0),
            "bias_ptr": bias,
            "bias_stride": bias.stride(0),
            "pos_ptr": batch.integers(0, 20, num_rows, dtype=torch.int64),
            "min_lens_ptr": min_lens,
            "num_stop_token_ids_ptr": num_stops,
            "restore_when_all_masked_ptr": wants_stops_back,
            "stop_token_ids_ptr": stops,
            "stop_token_ids_stride": stops.stride(0),
            "BLOCK_SIZE": NUM_ENTRIES,
            "LOGITS_BLOCK_SIZE": 16,
            "CHECK_ALL_MASKED_ROWS": restores,
        },
    )


@pytest.mark.parametrize("num_reqs", [0, 1, 6])
@pytest.mark.parametrize("has_drafts", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_bad_words(oracle, num_reqs, has_drafts, seed):
    batch = Batch(seed, num_reqs)
    slot, local_pos = batch.verification_rows()
    if not has_drafts:
        slot, local_pos = batch.idx_mapping, torch.zeros(num_reqs, dtype=torch.int32)
    num_rows, vocab_size, max_words = slot.shape[0], 37, 5
    lengths = batch.random.integers(1, 4, (batch.max_num_reqs, max_words))
    offsets = torch.zeros(batch.max_num_reqs, max_words + 1, dtype=torch.int32)
    offsets[:, 1:] = torch.from_numpy(lengths.cumsum(1))
    num_words = batch.integers(0, max_words, batch.max_num_reqs)
    # Behind a request's words lies what an earlier one left.
    left_over = torch.arange(max_words + 1) > num_words.unsqueeze(1)
    offsets = torch.where(left_over, batch.integers(0, 17, *offsets.shape), offsets)
    # Two different tokens only, so that words of several tokens do match.
    words = batch.integers(0, 1, batch.max_num_reqs, 3 * max_words + 2)
    all_token_ids = batch.integers(0, 1, batch.max_num_reqs, batch.max_len)
    logits = batch.normal(num_rows, vocab_size, row_padding=3)
    prompt_len = batch.integers(1, 9, batch.max_num_reqs)
    after = check(
        oracle,
        f"{SAMPLE}.bad_words._bad_words_kernel",
        (num_rows, max_words),
        {
            "logits_ptr": logits,
            "logits_stride": logits.stride(0),
            "expanded_idx_mapping_ptr": slot,
            "bad_word_token_ids_ptr": words,
            "bad_word_token_ids_stride": words.stride(0),
            "bad_word_offsets_ptr": offsets,
            "bad_word_offsets_stride": offsets.stride(0),
            "num_bad_words_ptr": num_words,
            "all_token_ids_ptr": all_token_ids,
            "all_token_ids_stride": all_token_ids.stride(0),
            "prompt_len_ptr": prompt_len,
            # Also outputs shorter than a word.
            "total_len_ptr": prompt_len + batch.integers(0, 6, batch.max_num_reqs),
            "input_ids_ptr": batch.integers(0, 1, num_rows),
            "expanded_local_pos_ptr": local_pos,
        },
    )
    if num_reqs == 6:
        assert after["logits_ptr"].isinf().any() and not after["logits_ptr"].isinf().all()


class LargestResult(TorchDispatchMode):
    """Elements of the largest tensor that operations inside have made."""

    elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for made in result if isinstance(result, (list, tuple)) else [result]:
            if isinstance(made, torch.Tensor):
                self.elements = max(self.elements, made.numel())
        return result


def test_bad_words_take_room_for_their_tokens_only():
    """Where an accelerator sizes everything by the tables: 1024 words, 16384 tokens a request."""
    batch, rows, max_words, max_tokens = Batch(0, 4), 4, 1024, 16384
    offsets = torch.zeros(batch.max_num_reqs, max_words + 1, dtype=torch.int32)
    offsets[:, 1] = 3
    arguments = {
        "logits_ptr": batch.normal(rows, 37),
        "logits_stride": 37,
        "expanded_idx_mapping_ptr": batch.idx_mapping,
        "bad_word_token_ids_ptr": batch.integers(0, 1, batch.max_num_reqs, max_tokens),
        "bad_word_token_ids_stride": max_tokens,
        "bad_word_offsets_ptr": offsets,
        "bad_word_offsets_stride": max_words + 1,
        "num_bad_words_ptr": torch.ones(batch.max_num_reqs, dtype=torch.int32),
        "all_token_ids_ptr": batch.integers(0, 1, batch.max_num_reqs, batch.max_len),
        "all_token_ids_stride": batch.max_len,
        "prompt_len_ptr": batch.integers(1, 9, batch.max_num_reqs),
        "total_len_ptr": batch.integers(9, 19, batch.max_num_reqs),
        "input_ids_ptr": batch.integers(0, 1, rows),
        "expanded_local_pos_ptr": torch.zeros(rows, dtype=torch.int32),
    }
    with LargestResult() as largest:
        run_ours(f"{SAMPLE}.bad_words._bad_words_kernel", (rows, 1), arguments, on_host=False)
    # The table itself is copied before the run.
    assert largest.elements <= max(batch.max_num_reqs, rows + 1) * (max_tokens + 1)


@pytest.mark.parametrize("num_reqs", [0, 1, 6])
@pytest.mark.parametrize("vocab_size", [32, 77])
@pytest.mark.parametrize("seed", range(3))
def test_grammar_masks(oracle, num_reqs, vocab_size, seed):
    batch = Batch(seed, num_reqs)
    mask_stride = 4
    num_logits = batch.integers(0, mask_stride, num_reqs)
    cu_num_logits = torch.zeros(num_reqs + 1, dtype=torch.int32)
    cu_num_logits[1:] = num_logits.cumsum(0)
    # Masks for more positions than some requests have logits for, in any order.
    places = batch.random.permutation(num_reqs * mask_stride)[: num_reqs * 3]
    bitmask = batch.integers(-(2**31), 2**31 - 1, len(places), (vocab_size + 31) // 32)
    logits = batch.normal(int(cu_num_logits[-1]) + 1, vocab_size, row_padding=3)
    check(
        oracle,
        "vllm.v1.worker.gpu.structured_outputs._apply_grammar_bitmask_kernel",
        (len(places), 2),
        {
            "logits_ptr": logits,
            "logits_stride": logits.stride(0),
            "logits_indices_ptr": torch.from_numpy(places).int(),
            "cu_num_logits_ptr": cu_num_logits,
            "bitmask_ptr": bitmask,
            "bitmask_stride": bitmask.stride(0),
            "vocab_size": vocab_size,
            "MASK_STRIDE": mask_stride,
            "BLOCK_SIZE": 64,
        },
    )
