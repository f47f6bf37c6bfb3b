# ruff: noqa: N803 -- parameters carry the names of the kernels' arguments
"""Torch forms of the kernels in `vllm.v1.worker.gpu.input_batch`.

Shapes used below: num_reqs rows of the batch, each pointing at a request slot through
`idx_mapping` (int64 [num_reqs]); per-slot state is [max_num_reqs, ...]; `query_start_loc` int32
[>= num_reqs + 1] says where each row's tokens begin. Outputs are written in place.
"""

from __future__ import annotations

import torch

from vllm_deepinfer.runner_kernels.extents import full_rows, ragged_rows, store
from vllm_deepinfer.runner_kernels.pointers import flat

MODULE = "vllm.v1.worker.gpu.input_batch"


def prepare_prefill_inputs(
    input_ids_ptr: torch.Tensor,
    next_prefill_tokens_ptr: torch.Tensor,
    next_prefill_tokens_stride: int,
    num_lookahead: int,
    idx_mapping_ptr: torch.Tensor,
    query_start_loc_ptr: torch.Tensor,
    all_token_ids_ptr: torch.Tensor,
    all_token_ids_stride: int,
    prefill_lens_ptr: torch.Tensor,
    num_computed_tokens_ptr: torch.Tensor,
    BLOCK_SIZE: int,
    LOOKAHEAD_BLOCK: int,
) -> None:
    """Copy the scheduled prompt tokens into the model's input, and note the ones that follow.

    input_ids int32 [max_num_tokens], next_prefill_tokens int32 [num_lookahead, max_num_reqs],
    all_token_ids int32 [max_num_reqs, max_model_len], prefill_lens and num_computed_tokens int32
    [max_num_reqs]. Rows past their prefill keep what they had.
    """
    num_reqs = idx_mapping_ptr.shape[0]
    if num_reqs == 0:
        return
    tokens_of = flat(all_token_ids_ptr)
    last_place = tokens_of.shape[0] - 1
    prefill_len = prefill_lens_ptr.index_select(0, idx_mapping_ptr)
    num_computed = num_computed_tokens_ptr.index_select(0, idx_mapping_ptr)
    is_prefill = num_computed < prefill_len
    first_token = idx_mapping_ptr * all_token_ids_stride + num_computed
    start = query_start_loc_ptr[:num_reqs]

    rows = ragged_rows(query_start_loc_ptr, num_reqs, input_ids_ptr.shape[0])
    source = (first_token - start).index_select(0, rows.row).add_(rows.item)
    tokens = tokens_of.index_select(0, source.clamp_(max=last_place))
    changed = is_prefill.index_select(0, rows.row)
    if rows.present is not None:
        changed &= rows.present
    store(input_ids_ptr[: rows.size], tokens, changed)

    ahead = torch.arange(num_lookahead, device=idx_mapping_ptr.device).unsqueeze(1)
    query_len = query_start_loc_ptr[1 : num_reqs + 1] - start
    source = (first_token + query_len + ahead).clamp_(max=last_place)
    in_prompt = num_computed + query_len + ahead < prefill_len
    tokens = torch.where(in_prompt, tokens_of[source], 0)
    place = ahead * next_prefill_tokens_stride + idx_mapping_ptr
    following = flat(next_prefill_tokens_ptr)
    following[place] = torch.where(is_prefill, tokens, following[place])


def prepare_pos_seq_lens(
    pos_ptr: torch.Tensor,
    seq_lens_ptr: torch.Tensor,
    idx_mapping_ptr: torch.Tensor,
    query_start_loc_ptr: torch.Tensor,
    num_computed_tokens_ptr: torch.Tensor,
    max_num_reqs: int,
    BLOCK_SIZE: int,
) -> None:
    """Positions (int64 [max_num_tokens]) and sequence lengths (int32 [max_num_reqs]) of the batch;
    sequence lengths behind the batch become 0."""
    num_reqs = idx_mapping_ptr.shape[0]
    seq_lens_ptr[num_reqs:max_num_reqs].zero_()
    if num_reqs == 0:
        return
    num_computed = num_computed_tokens_ptr.index_select(0, idx_mapping_ptr)
    # Subtracting the row's start turns a token's place in the batch into its place in the row.
    shift = num_computed - query_start_loc_ptr[:num_reqs]
    torch.add(shift, query_start_loc_ptr[1 : num_reqs + 1], out=seq_lens_ptr[:num_reqs])
    rows = ragged_rows(query_start_loc_ptr, num_reqs, pos_ptr.shape[0])
    positions = shift.index_select(0, rows.row).add_(rows.item)
    store(pos_ptr[: rows.size], positions, rows.present)


def combine_sampled_and_draft_tokens(
    input_ids_ptr: torch.Tensor,
    idx_mapping_ptr: torch.Tensor,
    last_sampled_tokens_ptr: torch.Tensor,
    query_start_loc_ptr: torch.Tensor,
    seq_lens_ptr: torch.Tensor,
    prefill_len_ptr: torch.Tensor,
    draft_tokens_ptr: torch.Tensor,
    draft_tokens_stride: int,
    cu_num_logits_ptr: torch.Tensor,
    logits_indices_ptr: torch.Tensor,
    BLOCK_SIZE: int,
    NUM_NEW_SAMPLED_TOKENS: int = 1,
) -> None:
    """Find the input rows to take logits from (logits_indices int64 [num_logits]) and put the last
    sampled token and the drafts of decoding rows into the model's input.

    last_sampled_tokens int64 [max_num_reqs, 1], draft_tokens int64 [max_num_reqs, num_drafts],
    cu_num_logits int32 [>= num_reqs + 1], seq_lens int32 [>= num_reqs]. With one new sampled token
    per step a row's first logit belongs to that token and the others to its drafts; with none all
    belong to drafts. A slot still inside the prompt keeps its prompt token.
    """
    num_reqs, num_logits = idx_mapping_ptr.shape[0], logits_indices_ptr.shape[0]
    if num_reqs == 0 or num_logits == 0:
        return
    rows = full_rows(cu_num_logits_ptr, num_reqs, num_logits)
    first = cu_num_logits_ptr[:num_reqs]
    count = cu_num_logits_ptr[1 : num_reqs + 1] - first
    start = query_start_loc_ptr[1 : num_reqs + 1] - count
    place = (start - first).index_select(0, rows.row).add_(rows.item).long()
    logits_indices_ptr.copy_(place)

    seq_len = seq_lens_ptr[:num_reqs]
    prefill_len = prefill_len_ptr.index_select(0, idx_mapping_ptr)
    written = (seq_len > prefill_len).index_select(0, rows.row)
    slot = idx_mapping_ptr.index_select(0, rows.row)
    draft = rows.item - first.index_select(0, rows.row) - NUM_NEW_SAMPLED_TOKENS
    tokens = _drafts_or_last_sampled(
        draft, slot, draft_tokens_ptr, draft_tokens_stride, last_sampled_tokens_ptr
    )
    if NUM_NEW_SAMPLED_TOKENS:
        is_generated = (seq_len - count >= prefill_len).index_select(0, rows.row)
        written &= (draft >= 0) | is_generated
    kept = input_ids_ptr.index_select(0, place)
    input_ids_ptr[place] = torch.where(written, tokens, kept).to(input_ids_ptr.dtype)


def _drafts_or_last_sampled(
    draft: torch.Tensor,
    slot: torch.Tensor,
    draft_tokens: torch.Tensor,
    draft_tokens_stride: int,
    last_sampled_tokens: torch.Tensor,
) -> torch.Tensor:
    """Token of each logit: the slot's draft number `draft`, or its last sampled token if < 0."""
    last_sampled = flat(last_sampled_tokens).index_select(0, slot)
    if draft_tokens.numel() == 0:
        return last_sampled
    drafts = flat(draft_tokens).index_select(0, slot * draft_tokens_stride + draft.clamp(min=0))
    return torch.where(draft >= 0, drafts, last_sampled)


def get_num_sampled_and_rejected(
    num_sampled_ptr: torch.Tensor,
    num_rejected_ptr: torch.Tensor,
    seq_lens_ptr: torch.Tensor,
    cu_num_logits_ptr: torch.Tensor,
    idx_mapping_ptr: torch.Tensor,
    prefill_len_ptr: torch.Tensor,
) -> None:
    """Drop the samples of rows whose prefill goes on, and count the rejected drafts of the others.

    num_sampled int32 [>= num_reqs] is changed in place, num_rejected int32 [>= num_reqs] written.
    """
    num_reqs = idx_mapping_ptr.shape[0]
    prefill_len = prefill_len_ptr.index_select(0, idx_mapping_ptr)
    is_unfinished = seq_lens_ptr[:num_reqs] < prefill_len
    num_sampled = num_sampled_ptr[:num_reqs].masked_fill_(is_unfinished, 0)
    num_logits = cu_num_logits_ptr[1 : num_reqs + 1] - cu_num_logits_ptr[:num_reqs]
    num_rejected_ptr[:num_reqs] = (num_logits - num_sampled).masked_fill_(is_unfinished, 0)


def expand_idx_mapping(
    idx_mapping_ptr: torch.Tensor,
    expanded_idx_mapping_ptr: torch.Tensor,
    expanded_local_pos_ptr: torch.Tensor,
    cu_num_logits_ptr: torch.Tensor,
    BLOCK_SIZE: int,
) -> None:
    """Repeat each row's slot once per logit (int64 [num_logits]) and number the row's logits
    (expanded_local_pos int32 [num_logits])."""
    num_reqs, num_logits = idx_mapping_ptr.shape[0], expanded_idx_mapping_ptr.shape[0]
    if num_reqs == 0:
        return
    rows = full_rows(cu_num_logits_ptr, num_reqs, num_logits)
    expanded_idx_mapping_ptr.copy_(idx_mapping_ptr.index_select(0, rows.row))
    expanded_local_pos_ptr.copy_(rows.item - cu_num_logits_ptr.index_select(0, rows.row))


KERNELS = {
    f"{MODULE}._prepare_prefill_inputs_kernel": prepare_prefill_inputs,
    f"{MODULE}._prepare_pos_seq_lens_kernel": prepare_pos_seq_lens,
    f"{MODULE}._combine_sampled_and_draft_tokens_kernel": combine_sampled_and_draft_tokens,
    f"{MODULE}._get_num_sampled_and_rejected_kernel": get_num_sampled_and_rejected,
    f"{MODULE}._expand_idx_mapping_kernel": expand_idx_mapping,
}
