# ruff: noqa: N803 -- parameters carry the names of the kernels' arguments
"""Torch forms of the penalty kernels (`vllm.v1.worker.gpu.sample.penalties`).

Each request keeps which tokens its prompt holds, packed 32 to an int32 (lowest bit first), and how
often its output holds each token.
"""

from __future__ import annotations

from functools import lru_cache

import torch

from vllm_deepinfer.runner_kernels.extents import largest, may_hold, selected_rows
from vllm_deepinfer.runner_kernels.pointers import flat

MODULE = "vllm.v1.worker.gpu.sample.penalties"


@lru_cache(maxsize=4)
def _bits_of_bytes(device: torch.device) -> torch.Tensor:
    """int64 [256]: the eight bits of every byte, lowest first, as eight bool bytes."""
    with torch.inference_mode(False):
        byte = torch.arange(256, device=device).unsqueeze(1)
        bits = (byte >> torch.arange(8, device=device)) % 2 == 1
        return bits.view(torch.int64).view(-1)


def unpack_bits(words: torch.Tensor, num_bits: int) -> torch.Tensor:
    """bool [num_rows, num_bits] from int32 [num_rows, ceil(num_bits / 32)], lowest bit first.

    Bytes are looked up, which is much faster than shifting words; they must be little-endian.
    """
    octets = words.contiguous().view(torch.uint8).view(-1).int()
    bits = _bits_of_bytes(words.device).index_select(0, octets).view(torch.bool)
    return bits.view(words.shape[0], -1)[:, :num_bits]


def pack_bits(bits: torch.Tensor) -> torch.Tensor:
    """int32 [num_rows, num_bits / 32] from bool [num_rows, num_bits], a multiple of 32."""
    shifts = torch.arange(32, dtype=torch.int32, device=bits.device)
    # Distinct powers of two: their sum is their union, and bit 31 wraps to the sign.
    return (bits.view(bits.shape[0], -1, 32).int() << shifts).sum(2, dtype=torch.int32)


def penalties(
    logits_ptr: torch.Tensor,
    logits_stride: int,
    expanded_idx_mapping_ptr: torch.Tensor,
    token_ids_ptr: torch.Tensor,
    expanded_local_pos_ptr: torch.Tensor,
    repetition_penalty_ptr: torch.Tensor,
    frequency_penalty_ptr: torch.Tensor,
    presence_penalty_ptr: torch.Tensor,
    prompt_bin_mask_ptr: torch.Tensor,
    prompt_bin_mask_stride: int,
    output_bin_counts_ptr: torch.Tensor,
    output_bin_counts_stride: int,
    vocab_size: int,
    BLOCK_SIZE: int,
) -> None:
    """Apply repetition, frequency and presence penalties to logits [num_rows, vocab_size].

    expanded_idx_mapping int64 and expanded_local_pos int32 [num_rows]; the row with local position
    p also counts the p drafts before it, token_ids (int32 [num_rows]) of the rows up to its own.
    Penalties float32 [max_num_reqs], 1, 0 and 0 meaning none; prompt_bin_mask int32 [max_num_reqs,
    ceil(vocab_size / 32)]; output_bin_counts int32 [max_num_reqs, vocab_size].
    """
    slot = expanded_idx_mapping_ptr
    if slot.shape[0] == 0:
        return
    repetition = repetition_penalty_ptr.index_select(0, slot)
    frequency = frequency_penalty_ptr.index_select(0, slot)
    presence = presence_penalty_ptr.index_select(0, slot)
    used = (repetition != 1.0) | (frequency != 0.0) | (presence != 0.0)
    if not may_hold(used):
        return
    counts = output_bin_counts_ptr[:, :vocab_size].index_select(0, slot)
    _count_drafts(counts, token_ids_ptr, expanded_local_pos_ptr)

    rows = selected_rows(used)
    logits = logits_ptr[:, :vocab_size]
    if rows is not None:
        repetition, frequency, presence, slot, counts, logits = (
            tensor.index_select(0, rows)
            for tensor in (repetition, frequency, presence, slot, counts, logits)
        )
    penalised = _penalise(
        logits,
        counts,
        unpack_bits(prompt_bin_mask_ptr.index_select(0, slot), vocab_size),
        *(penalty.unsqueeze(1) for penalty in (repetition, frequency, presence)),
    )
    if rows is None:
        logits.copy_(penalised)
    else:
        logits_ptr[:, :vocab_size].index_copy_(0, rows, penalised.to(logits_ptr.dtype))


def _penalise(
    logits: torch.Tensor,
    counts: torch.Tensor,
    in_prompt: torch.Tensor,
    repetition: torch.Tensor,
    frequency: torch.Tensor,
    presence: torch.Tensor,
) -> torch.Tensor:
    """Penalties [num_rows, 1] on logits [num_rows, vocab_size]; float32."""
    logits = logits.float()
    in_output = counts > 0
    # A positive logit shrinks by a factor, not a quotient: upstream rounds it that way.
    factor = torch.where(logits > 0, 1.0 / repetition, repetition)
    factor.masked_fill_(~(in_prompt | in_output), 1.0)
    return logits.mul(factor).sub_(frequency * counts).sub_(presence * in_output)


def _count_drafts(counts: torch.Tensor, token_ids: torch.Tensor, local_pos: torch.Tensor) -> None:
    """Add to counts [num_rows, vocab_size] the drafts ahead of each row within its request."""
    num_rows, vocab_size = counts.shape
    depth = largest(local_pos, num_rows - 1)
    if depth == 0:
        return
    back = torch.arange(depth, device=counts.device)
    source = (torch.arange(num_rows, device=counts.device).unsqueeze(1) - back).clamp_(min=0)
    drafts = token_ids[source].long()
    counted = (back < local_pos.unsqueeze(1)) & (drafts >= 0) & (drafts < vocab_size)
    counts.scatter_add_(1, torch.where(counted, drafts, 0), counted.to(counts.dtype))


def bincount(
    expanded_idx_mapping_ptr: torch.Tensor,
    all_token_ids_ptr: torch.Tensor,
    all_token_ids_stride: int,
    prompt_len_ptr: torch.Tensor,
    prefill_len_ptr: torch.Tensor,
    prompt_bin_mask_ptr: torch.Tensor,
    prompt_bin_mask_stride: int,
    output_bin_counts_ptr: torch.Tensor,
    output_bin_counts_stride: int,
    BLOCK_SIZE: int,
) -> None:
    """Add the tokens of new requests to their statistics: those before prompt_len to the prompt's
    bits, the others up to prefill_len (int32 [max_num_reqs] both) to the output's counts.

    expanded_idx_mapping int64 [num_new]; all_token_ids int32 [max_num_reqs, max_model_len].
    """
    slot = expanded_idx_mapping_ptr.long()
    num_new, num_words = slot.shape[0], prompt_bin_mask_ptr.shape[1]
    if num_new == 0:
        return
    prompt_len = prompt_len_ptr.index_select(0, slot).unsqueeze(1)
    prefill_len = prefill_len_ptr.index_select(0, slot).unsqueeze(1)
    width = largest(prefill_len.view(-1), all_token_ids_ptr.shape[1])
    tokens = all_token_ids_ptr[:, :width].index_select(0, slot).long()
    position = torch.arange(width, device=slot.device)

    # One more column takes the tokens that are not the prompt's.
    seen = torch.zeros(num_new, num_words * 32 + 1, dtype=torch.bool, device=slot.device)
    seen.scatter_(1, torch.where(position < prompt_len, tokens, num_words * 32), True)
    words = pack_bits(seen[:, :-1].contiguous())
    prompt_bin_mask_ptr[slot] = prompt_bin_mask_ptr.index_select(0, slot) | words

    in_output = (position >= prompt_len) & (position < prefill_len)
    if may_hold(in_output):
        counts = flat(output_bin_counts_ptr)
        place = slot.unsqueeze(1) * output_bin_counts_stride + tokens
        place = torch.where(in_output, place, 0)
        counts.index_add_(0, place.view(-1), in_output.view(-1).to(counts.dtype))


KERNELS = {
    f"{MODULE}._penalties_kernel": penalties,
    f"{MODULE}._bincount_kernel": bincount,
}
