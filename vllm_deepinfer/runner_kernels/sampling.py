# ruff: noqa: N803 -- parameters carry the names of the kernels' arguments
"""Torch forms of the element-wise sampling kernels of the V2 runner: temperature, min-p, the NaN
count, the sampling mask and trace replay.

`logits` is [num_rows, vocab_size], changed in place; `expanded_idx_mapping` int64 [num_rows] names
each row's request slot; per-request parameters are [max_num_reqs].
"""

from __future__ import annotations

import torch

from vllm_deepinfer.runner_kernels.pointers import flat

SAMPLE = "vllm.v1.worker.gpu.sample"


def temperature(
    logits_ptr: torch.Tensor,
    logits_stride: int,
    expanded_idx_mapping_ptr: torch.Tensor,
    temperature_ptr: torch.Tensor,
    vocab_size: int,
    BLOCK_SIZE: int,
) -> None:
    """Divide each row by its request's temperature (float32); 0, greedy, leaves the row alone."""
    divisor = temperature_ptr.index_select(0, expanded_idx_mapping_ptr).float()
    divisor.masked_fill_(divisor == 0.0, 1.0)
    logits_ptr[:, :vocab_size].div_(divisor.unsqueeze(1))


def min_p(
    logits_ptr: torch.Tensor,
    logits_stride: int,
    expanded_idx_mapping_ptr: torch.Tensor,
    min_p_ptr: torch.Tensor,
    vocab_size: int,
    BLOCK_SIZE: int,
) -> None:
    """Set to -inf what is less likely than min_p (float32, 0 for off) times the likeliest token."""
    logits = logits_ptr[:, :vocab_size]
    # min_p 0 needs no case of its own: its logarithm is -inf, below which there is nothing.
    margin = min_p_ptr.index_select(0, expanded_idx_mapping_ptr).float().log_()
    threshold = logits.amax(dim=1).float().add_(margin)
    logits.masked_fill_(logits < threshold.unsqueeze(1), float("-inf"))


def num_nans(
    logits_ptr: torch.Tensor,
    logits_stride: int,
    num_nans_ptr: torch.Tensor,
    vocab_size: int,
    BLOCK_SIZE: int,
) -> None:
    """Count the NaNs of each row into num_nans (int32 [num_rows])."""
    torch.sum(logits_ptr[:, :vocab_size].isnan(), dim=1, dtype=num_nans_ptr.dtype, out=num_nans_ptr)


def compact_sampling_mask(
    logits_ptr: torch.Tensor,
    logits_row_stride: int,
    logits_col_stride: int,
    cu_num_logits_ptr: torch.Tensor,
    num_sampled_tokens_ptr: torch.Tensor,
    token_ids_ptr: torch.Tensor,
    token_ids_row_stride: int,
    packed_mask_ptr: torch.Tensor,
    packed_mask_row_stride: int,
    counts_ptr: torch.Tensor,
    vocab_size: int,
    max_num_kept: int,
    ROWS_PER_REQUEST: int,
    BLOCK_SIZE: int,
) -> None:
    """List the tokens each sampled row could have drawn, those with a finite logit.

    Output row r is slot r % ROWS_PER_REQUEST of request r // ROWS_PER_REQUEST. token_ids int32
    [num_output_rows, max_num_kept] takes the first ids, counts int32 [num_output_rows] the full
    number, packed_mask uint8 [num_output_rows, ceil(vocab_size / 8)] one bit per token, lowest bit
    first. A slot past the request's num_sampled_tokens gets count 0 and is otherwise left alone.
    """
    num_rows = counts_ptr.shape[0]
    if num_rows == 0:
        return
    output_row = torch.arange(num_rows, device=counts_ptr.device)
    request, slot = output_row // ROWS_PER_REQUEST, output_row % ROWS_PER_REQUEST
    active = (slot < num_sampled_tokens_ptr.index_select(0, request)).unsqueeze(1)
    source = cu_num_logits_ptr.index_select(0, request) + slot
    source.clamp_(max=logits_ptr.shape[0] - 1)
    kept = logits_ptr[:, :vocab_size].index_select(0, source).isfinite().logical_and_(active)
    place = kept.int().cumsum_(1)
    counts_ptr.copy_(place[:, -1])

    # One more column takes what does not fit.
    place = torch.where(kept, place - 1, max_num_kept).clamp_(max=max_num_kept).long()
    padded = token_ids_ptr.new_zeros(num_rows, max_num_kept + 1)
    padded[:, :max_num_kept] = token_ids_ptr[:, :max_num_kept]
    token = torch.arange(vocab_size, dtype=padded.dtype, device=padded.device)
    padded.scatter_(1, place, token.expand(num_rows, -1))
    token_ids_ptr[:, :max_num_kept] = padded[:, :max_num_kept]

    num_bytes = (vocab_size + 7) // 8
    bits = torch.nn.functional.pad(kept.to(torch.uint8), (0, num_bytes * 8 - vocab_size))
    weight = (1 << torch.arange(8, device=bits.device)).to(torch.uint8)
    packed = (bits.view(num_rows, num_bytes, 8) * weight).sum(2, dtype=torch.uint8)
    target = packed_mask_ptr[:, :num_bytes]
    target.copy_(torch.where(active, packed, target))


def trace_replay(
    sampled_ptr: torch.Tensor,
    idx_mapping_ptr: torch.Tensor,
    trace_token_ids_ptr: torch.Tensor,
    trace_token_ids_stride: int,
    trace_len_ptr: torch.Tensor,
    total_len_ptr: torch.Tensor,
    prompt_len_ptr: torch.Tensor,
) -> None:
    """Replace sampled tokens (int64 [num_reqs]) by the tokens of a request's trace, if it has one.

    trace_token_ids int32 [max_num_reqs, max_model_len]; lengths int32 [max_num_reqs]. A negative
    entry of idx_mapping skips its row.
    """
    num_reqs = idx_mapping_ptr.shape[0]
    slot = idx_mapping_ptr.clamp(min=0)
    step = total_len_ptr.index_select(0, slot) - prompt_len_ptr.index_select(0, slot)
    replayed = (idx_mapping_ptr >= 0) & (step >= 0) & (step < trace_len_ptr.index_select(0, slot))
    place = torch.where(replayed, slot * trace_token_ids_stride + step, 0)
    tokens = flat(trace_token_ids_ptr).index_select(0, place)
    sampled_ptr[:num_reqs] = torch.where(replayed, tokens, sampled_ptr[:num_reqs])


KERNELS = {
    f"{SAMPLE}.gumbel._temperature_kernel": temperature,
    f"{SAMPLE}.min_p._min_p_kernel": min_p,
    "vllm.v1.worker.gpu.metrics.logits._num_nans_kernel": num_nans,
    f"{SAMPLE}.output._compact_sampling_mask_kernel": compact_sampling_mask,
    f"{SAMPLE}.trace_replay._trace_replay_kernel": trace_replay,
}
