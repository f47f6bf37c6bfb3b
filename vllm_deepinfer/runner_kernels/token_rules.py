# ruff: noqa: N803 -- parameters carry the names of the kernels' arguments
"""Torch forms of the kernels that allow, bias and forbid tokens by request:
`vllm.v1.worker.gpu.sample.logit_bias`, `.bad_words` and `vllm.v1.worker.gpu.structured_outputs`.

`logits` is [num_rows, vocab_size], changed in place; `expanded_idx_mapping` int64 [num_rows] names
each row's request slot; lists of tokens are int32 [max_num_reqs, max_entries] with a count per
request in int32 [max_num_reqs].
"""

from __future__ import annotations

import torch

from vllm_deepinfer.runner_kernels.extents import largest, may_hold, replace_inactive
from vllm_deepinfer.runner_kernels.penalties import unpack_bits
from vllm_deepinfer.runner_kernels.pointers import flat

LOGIT_BIAS = "vllm.v1.worker.gpu.sample.logit_bias"
BAD_WORDS = "vllm.v1.worker.gpu.sample.bad_words"
STRUCTURED_OUTPUTS = "vllm.v1.worker.gpu.structured_outputs"
NEVER = float("-inf")


def bias(
    logits_ptr: torch.Tensor,
    logits_stride: int,
    vocab_size: int,
    expanded_idx_mapping_ptr: torch.Tensor,
    num_allowed_token_ids_ptr: torch.Tensor,
    allowed_token_ids_ptr: torch.Tensor,
    allowed_token_ids_stride: int,
    num_logit_bias_ptr: torch.Tensor,
    bias_token_ids_ptr: torch.Tensor,
    bias_token_ids_stride: int,
    bias_ptr: torch.Tensor,
    bias_stride: int,
    pos_ptr: torch.Tensor,
    min_lens_ptr: torch.Tensor,
    num_stop_token_ids_ptr: torch.Tensor,
    restore_when_all_masked_ptr: torch.Tensor,
    stop_token_ids_ptr: torch.Tensor,
    stop_token_ids_stride: int,
    BLOCK_SIZE: int,
    LOGITS_BLOCK_SIZE: int,
    CHECK_ALL_MASKED_ROWS: bool,
) -> None:
    """Keep only allowed tokens, then add biases, then forbid stop tokens before the minimum length.

    bias float32 [max_num_reqs, max_entries]; pos int64 [num_rows], the position sampled from;
    min_lens int32 [max_num_reqs], the total length before which stop tokens are forbidden. With
    CHECK_ALL_MASKED_ROWS, a request that asks for it (restore_when_all_masked, int32) keeps its
    finite stop tokens where nothing else is left.
    """
    slot = expanded_idx_mapping_ptr
    logits = logits_ptr[:, :vocab_size]
    num_allowed = num_allowed_token_ids_ptr.index_select(0, slot)
    if may_hold(num_allowed > 0):
        allowed = _token_set(allowed_token_ids_ptr, slot, num_allowed, vocab_size)
        logits.masked_fill_(~allowed & (num_allowed > 0).unsqueeze(1), NEVER)

    num_biased = num_logit_bias_ptr.index_select(0, slot)
    if may_hold(num_biased > 0):
        tokens, listed = _token_list(bias_token_ids_ptr, slot, num_biased)
        added = bias_ptr[:, : tokens.shape[1]].index_select(0, slot).masked_fill_(~listed, 0.0)
        logits.scatter_add_(1, tokens.masked_fill(~listed, 0), added.to(logits.dtype))

    too_early = pos_ptr + 1 < min_lens_ptr.index_select(0, slot)
    num_stops = num_stop_token_ids_ptr.index_select(0, slot).masked_fill_(~too_early, 0)
    if may_hold(num_stops > 0):
        stops = _token_set(stop_token_ids_ptr, slot, num_stops, vocab_size)
        if CHECK_ALL_MASKED_ROWS:
            restores = restore_when_all_masked_ptr.index_select(0, slot) != 0
            nothing_left = logits.masked_fill(stops, NEVER).amax(dim=1) == NEVER
            stops &= ~((restores & nothing_left).unsqueeze(1) & logits.isfinite())
        logits.masked_fill_(stops, NEVER)


def _token_list(
    table: torch.Tensor, slot: torch.Tensor, counts: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The rows' lists, int64 [num_rows, longest], and which of their entries are filled (bool)."""
    width = largest(counts, table.shape[1])
    order = torch.arange(width, device=table.device)
    return table[:, :width].index_select(0, slot).long(), order < counts.unsqueeze(1)


def _token_set(
    table: torch.Tensor, slot: torch.Tensor, counts: torch.Tensor, vocab_size: int
) -> torch.Tensor:
    """The rows' lists as bool [num_rows, vocab_size]."""
    tokens, listed = _token_list(table, slot, counts)
    # One more column takes the entries that are not filled.
    members = torch.zeros(slot.shape[0], vocab_size + 1, dtype=torch.bool, device=table.device)
    return members.scatter_(1, tokens.masked_fill(~listed, vocab_size), True)[:, :vocab_size]


def bad_words(
    logits_ptr: torch.Tensor,
    logits_stride: int,
    expanded_idx_mapping_ptr: torch.Tensor,
    bad_word_token_ids_ptr: torch.Tensor,
    bad_word_token_ids_stride: int,
    bad_word_offsets_ptr: torch.Tensor,
    bad_word_offsets_stride: int,
    num_bad_words_ptr: torch.Tensor,
    all_token_ids_ptr: torch.Tensor,
    all_token_ids_stride: int,
    prompt_len_ptr: torch.Tensor,
    total_len_ptr: torch.Tensor,
    input_ids_ptr: torch.Tensor,
    expanded_local_pos_ptr: torch.Tensor,
) -> None:
    """Forbid the last token of each bad word whose other tokens end the output so far.

    bad_word_token_ids int32 [max_num_reqs, max_tokens] holds a request's words one behind the
    other, bad_word_offsets int32 [max_num_reqs, max_words + 1] their limits, num_bad_words int32
    [max_num_reqs] their number. The output of the row with local position p (expanded_local_pos
    int32 [num_rows]) ends with the p drafts ahead of it: input_ids (int32 [num_rows]) of the rows
    up to its own.
    """
    slot = expanded_idx_mapping_ptr
    num_words = num_bad_words_ptr.index_select(0, slot)
    if not may_hold(num_words > 0):
        return
    most_places = bad_word_token_ids_ptr.shape[1]
    width = largest(num_words, bad_word_offsets_ptr.shape[1] - 1)
    offsets = bad_word_offsets_ptr[:, : width + 1].index_select(0, slot).long()
    is_word = torch.arange(width, device=slot.device) < num_words.unsqueeze(1)
    # Behind a row's words lies what another request left.
    start = offsets[:, :-1].masked_fill(~is_word, most_places)
    end = offsets[:, 1:].masked_fill(~is_word, most_places)
    prefix_len = end - start - 1

    prompt_len = prompt_len_ptr.index_select(0, slot)
    output_len = (total_len_ptr.index_select(0, slot) - prompt_len).view(-1, 1)
    effective_len = output_len + expanded_local_pos_ptr.view(-1, 1)

    # Tokens of words, place by place, are [num_rows, places]: by words of unequal length they would
    # be as many as words times the longest.
    num_places = largest(end.masked_fill(~is_word, 0).amax(1), most_places)
    place = torch.arange(num_places, device=slot.device).repeat(slot.shape[0], 1)
    word = torch.searchsorted(end, place, right=True).clamp_(max=width - 1)
    words, first_place = (
        flat(bad_word_token_ids_ptr),
        (slot * bad_word_token_ids_stride).view(-1, 1),
    )
    expected = words[first_place + place]
    last = end.gather(1, word) - 1
    position = effective_len - last + place - output_len
    # From 0 on positions lie among the drafts; draft 0 is the input one row behind the first.
    first_row = torch.arange(slot.shape[0], device=slot.device) - expanded_local_pos_ptr
    draft_row = (first_row.view(-1, 1) + position + 1).clamp_(0, input_ids_ptr.shape[0] - 1)
    output_end = (slot * all_token_ids_stride + prompt_len).view(-1, 1) + output_len
    tokens = flat(all_token_ids_ptr)
    committed = (output_end + position).clamp_(0, tokens.shape[0] - 1)
    actual = torch.where(position >= 0, input_ids_ptr[draft_row], tokens[committed])

    differs = (place < last) & (expected != actual)
    so_far = torch.nn.functional.pad(differs.cumsum(1), (1, 0))
    most = so_far.shape[1] - 1
    in_prefix = so_far.gather(1, (end - 1).clamp(0, most)) - so_far.gather(1, start.clamp(0, most))
    matches = is_word & (prefix_len <= effective_len) & (in_prefix == 0)
    banned = (first_place + end - 1).clamp_(0, words.shape[0] - 1)
    _ban(logits_ptr, words[banned], matches)


def apply_grammar_bitmask(
    logits_ptr: torch.Tensor,
    logits_stride: int,
    logits_indices_ptr: torch.Tensor,
    cu_num_logits_ptr: torch.Tensor,
    bitmask_ptr: torch.Tensor,
    bitmask_stride: int,
    vocab_size: int,
    MASK_STRIDE: int,
    BLOCK_SIZE: int,
) -> None:
    """Forbid every token whose bit in its row's grammar mask is 0.

    bitmask int32 [num_masks, ceil(vocab_size / 32)], lowest bit first; mask m belongs to position
    logits_indices[m] % MASK_STRIDE of request logits_indices[m] // MASK_STRIDE (int32 [num_masks]);
    cu_num_logits int32 [num_reqs + 1]. A position the request has no logits for is skipped.
    """
    num_masks = bitmask_ptr.shape[0]
    if num_masks == 0:
        return
    index = logits_indices_ptr[:num_masks]
    request, position = index // MASK_STRIDE, index % MASK_STRIDE
    first = cu_num_logits_ptr.index_select(0, request)
    active = position < cu_num_logits_ptr.index_select(0, request + 1) - first

    masks = replace_inactive(active)
    row = torch.where(active, first + position, 0).index_select(0, masks)
    forbidden = ~unpack_bits(bitmask_ptr.index_select(0, masks), vocab_size)
    forbidden &= active.index_select(0, masks).unsqueeze(1)
    logits = logits_ptr[:, :vocab_size]
    logits.index_copy_(0, row.long(), logits.index_select(0, row).masked_fill_(forbidden, NEVER))


def _ban(logits: torch.Tensor, token_ids: torch.Tensor, where: torch.Tensor) -> None:
    """Set logits[row, token_ids[row, k]] to -inf wherever `where[row, k]`.

    logits: float [n, vocab_size], changed in place. token_ids: int [n, k]; entries not selected by
    the bool `where` [n, k] may hold anything.
    """
    # The minimum with +inf leaves a logit as it is: unselected entries need no place of their own.
    index = torch.where(where, token_ids, 0).long()
    values = torch.full_like(index, float("inf"), dtype=logits.dtype)
    values.masked_fill_(where, float("-inf"))
    logits.scatter_reduce_(1, index, values, "amin", include_self=True)


KERNELS = {
    f"{LOGIT_BIAS}._bias_kernel": bias,
    f"{BAD_WORDS}._bad_words_kernel": bad_words,
    f"{STRUCTURED_OUTPUTS}._apply_grammar_bitmask_kernel": apply_grammar_bitmask,
}
