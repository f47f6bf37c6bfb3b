# ruff: noqa: N803 -- parameters carry the names of the kernels' arguments
"""Torch forms of the thinking-budget kernels (`vllm.v1.worker.gpu.sample.thinking_budget`).

A reasoning section opens with one marker (a short sequence of tokens) and ends with another. Once
a request with a budget has thought for that many tokens, the end marker is forced, token by token.
Markers are int32 [length]; per-request state is int32 [max_num_reqs]; all_token_ids is int32
[max_num_reqs, max_model_len]; a negative budget means none.
"""

from __future__ import annotations

import torch

from vllm_deepinfer.runner_kernels.extents import largest, may_hold
from vllm_deepinfer.runner_kernels.pointers import flat

MODULE = "vllm.v1.worker.gpu.sample.thinking_budget"
# Beats every logit that a model or another rule produces.
FORCED_LOGIT = 1.0e9


def _last_match(
    window: torch.Tensor, position: torch.Tensor, marker: torch.Tensor, usable: torch.Tensor
) -> torch.Tensor:
    """Largest position at which `marker` begins, int64 [num_rows], or -1.

    window: int64 [num_rows, width], tokens at `position` [num_rows, width], consecutive in a row;
    usable: bool [num_rows, width], where a marker may begin. A marker must lie within the window.
    """
    width = window.shape[1] - marker.shape[0] + 1
    if width <= 0:
        return position.new_full((position.shape[0],), -1)
    matches = usable[:, :width]
    for step in range(marker.shape[0]):
        matches = matches & (window[:, step : step + width] == marker[step])
    return torch.where(matches, position[:, :width], -1).amax(dim=1)


def update_committed_marker_cache(
    req_ids_ptr: torch.Tensor,
    thinking_token_budget_ptr: torch.Tensor,
    all_token_ids_ptr: torch.Tensor,
    all_token_ids_stride: int,
    total_len_ptr: torch.Tensor,
    cached_last_start_ptr: torch.Tensor,
    cached_last_end_ptr: torch.Tensor,
    cached_scan_pos_ptr: torch.Tensor,
    reasoning_start_token_ids_ptr: torch.Tensor,
    natural_reasoning_end_token_ids_ptr: torch.Tensor,
    START_LEN: int,
    NATURAL_END_LEN: int,
    MAX_LEN: int,
    BLOCK: int,
) -> None:
    """Note where the last markers among each request's tokens begin; -1 for none.

    req_ids int64 [num_reqs]. A request seen for the first time is looked through as a whole: as
    upstream does, only markers in the last block of BLOCK tokens (counted from the end) that holds
    one are noted. Later only new tokens are looked at. How many there are is a data-dependent
    shape; an accelerator takes max_model_len instead.
    """
    budget = thinking_token_budget_ptr.index_select(0, req_ids_ptr)
    has_budget = budget >= 0
    if not may_hold(has_budget):
        return
    total_len = total_len_ptr.index_select(0, req_ids_ptr).long()
    scan_pos, last_start, last_end = (
        cache.index_select(0, req_ids_ptr).long()
        for cache in (cached_scan_pos_ptr, cached_last_start_ptr, cached_last_end_ptr)
    )
    restarts = scan_pos > total_len
    scan_pos = scan_pos.masked_fill(restarts, 0)
    last_start, last_end = last_start.masked_fill(restarts, -1), last_end.masked_fill(restarts, -1)
    is_first = (scan_pos == 0) & (last_start < 0) & (last_end < 0)

    num_new = (total_len - scan_pos).masked_fill(~has_budget, 0)
    width = max(largest(num_new, all_token_ids_ptr.shape[1]), 1)
    tokens = flat(all_token_ids_ptr)
    position = scan_pos.unsqueeze(1) + torch.arange(width, device=tokens.device)
    place = (req_ids_ptr * all_token_ids_stride).unsqueeze(1) + position
    window = tokens[place.clamp_(max=tokens.shape[0] - 1)]
    room = total_len.unsqueeze(1) - position
    start = _last_match(window, position, reasoning_start_token_ids_ptr, room >= START_LEN)
    end = _last_match(
        window, position, natural_reasoning_end_token_ids_ptr, room >= NATURAL_END_LEN
    )

    latest = torch.maximum(start, end)
    block_start = total_len - ((total_len - 1 - latest) // BLOCK + 1) * BLOCK
    outside = is_first & (latest >= 0)
    start = start.masked_fill(outside & (start < block_start), -1)
    end = end.masked_fill(outside & (end < block_start), -1)
    for cache, found, previous in (
        (cached_last_start_ptr, start, last_start),
        (cached_last_end_ptr, end, last_end),
    ):
        noted = torch.where(found >= 0, found, previous).to(cache.dtype)
        cache[req_ids_ptr] = torch.where(has_budget, noted, cache.index_select(0, req_ids_ptr))
    next_pos = (total_len - (MAX_LEN - 1)).clamp_(min=0).to(cached_scan_pos_ptr.dtype)
    unchanged = cached_scan_pos_ptr.index_select(0, req_ids_ptr)
    cached_scan_pos_ptr[req_ids_ptr] = torch.where(has_budget, next_pos, unchanged)


def thinking_budget(
    logits_ptr: torch.Tensor,
    logits_stride: int,
    expanded_idx_mapping_ptr: torch.Tensor,
    thinking_token_budget_ptr: torch.Tensor,
    all_token_ids_ptr: torch.Tensor,
    all_token_ids_stride: int,
    total_len_ptr: torch.Tensor,
    input_ids_ptr: torch.Tensor,
    expanded_local_pos_ptr: torch.Tensor,
    cached_last_start_ptr: torch.Tensor,
    cached_last_end_ptr: torch.Tensor,
    reasoning_start_token_ids_ptr: torch.Tensor,
    natural_reasoning_end_token_ids_ptr: torch.Tensor,
    reasoning_end_token_ids_ptr: torch.Tensor,
    START_LEN: int,
    NATURAL_END_LEN: int,
    END_LEN: int,
) -> None:
    """Force the next token of the end marker in every row whose request has used up its budget.

    logits float [num_rows, vocab_size]; expanded_idx_mapping int64 [num_rows]; the sequence of the
    row with local position p (expanded_local_pos int32 [num_rows]) ends with the p drafts ahead of
    it: input_ids (int32 [num_rows]) of the rows up to its own. Tokens before the row's own were
    searched by `update_committed_marker_cache`.
    """
    slot = expanded_idx_mapping_ptr
    num_rows = slot.shape[0]
    if num_rows == 0:
        return
    budget = thinking_token_budget_ptr.index_select(0, slot)
    if not may_hold(budget >= 0):
        return
    total_len = total_len_ptr.index_select(0, slot).long()
    length = total_len + expanded_local_pos_ptr
    before = max(START_LEN, NATURAL_END_LEN, END_LEN) - 1
    width = before + largest(expanded_local_pos_ptr, num_rows - 1)
    position = (total_len - before).unsqueeze(1) + torch.arange(width, device=slot.device)
    window = _sequence_tail(
        flat(all_token_ids_ptr),
        (slot * all_token_ids_stride).unsqueeze(1),
        input_ids_ptr,
        expanded_local_pos_ptr,
        total_len.unsqueeze(1),
        position,
    )
    last = []
    for cache, marker in (
        (cached_last_start_ptr, reasoning_start_token_ids_ptr),
        (cached_last_end_ptr, natural_reasoning_end_token_ids_ptr),
    ):
        marker_len = marker.shape[0]
        usable = position >= (total_len - marker_len + 1).clamp(min=0).unsqueeze(1)
        usable &= position + marker_len <= length.unsqueeze(1)
        found = _last_match(window, position, marker, usable)
        last.append(torch.where(found >= 0, found, cache.index_select(0, slot)))
    last_start, last_end = last
    spent = length - (last_start + START_LEN) >= budget
    forced = (budget >= 0) & (last_start >= 0) & (last_start > last_end) & spent

    num_forced = _forced_prefix(
        window, before + expanded_local_pos_ptr.long(), length, reasoning_end_token_ids_ptr
    )
    token = reasoning_end_token_ids_ptr.index_select(0, num_forced).long().unsqueeze(1)
    kept = logits_ptr.gather(1, token)
    logits_ptr.scatter_(1, token, torch.where(forced.unsqueeze(1), FORCED_LOGIT, kept))


def _sequence_tail(
    tokens: torch.Tensor,
    first_token: torch.Tensor,
    input_ids: torch.Tensor,
    local_pos: torch.Tensor,
    total_len: torch.Tensor,
    position: torch.Tensor,
) -> torch.Tensor:
    """Tokens at `position` int64 [num_rows, width] of each row's sequence, committed ones first,
    then drafts; outside the sequence the value means nothing."""
    first_row = torch.arange(local_pos.shape[0], device=local_pos.device) - local_pos
    draft_row = first_row.unsqueeze(1) + position - total_len + 1
    drafts = input_ids[draft_row.clamp_(0, input_ids.shape[0] - 1)]
    committed = tokens[(first_token + position).clamp_(0, tokens.shape[0] - 1)]
    return torch.where(position < total_len, committed, drafts)


def _forced_prefix(
    window: torch.Tensor, end: torch.Tensor, length: torch.Tensor, marker: torch.Tensor
) -> torch.Tensor:
    """How much of `marker` (short of all of it) each sequence already ends with, int64 [num_rows].

    Each sequence of `length` tokens ends before column `end` of the window [num_rows, width], which
    reaches at least len(marker) - 1 tokens back from there.
    """
    num_forced = torch.zeros_like(length)
    for size in range(1, marker.shape[0]):
        column = (end - size).unsqueeze(1) + torch.arange(size, device=window.device)
        suffix = window.gather(1, column)
        matches = (suffix == marker[:size]).all(dim=1) & (length >= size)
        num_forced = num_forced.masked_fill(matches, size)
    return num_forced


KERNELS = {
    f"{MODULE}._update_committed_marker_cache_kernel": update_committed_marker_cache,
    f"{MODULE}._thinking_budget_kernel": thinking_budget,
}
