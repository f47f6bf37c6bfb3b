# ruff: noqa: N803 -- parameters carry the names of the kernels' arguments
"""Torch forms of the log-probability kernels (`vllm.v1.worker.gpu.sample.logprob` and
`.prompt_logprob`)."""

from __future__ import annotations

import torch

from vllm_deepinfer.runner_kernels.extents import ragged_rows, store
from vllm_deepinfer.runner_kernels.pointers import flat

MODULE = "vllm.v1.worker.gpu.sample.logprob"


def topk_log_softmax(
    output_ptr: torch.Tensor,
    logits_ptr: torch.Tensor,
    logits_stride: int,
    topk_ids_ptr: torch.Tensor,
    topk_ids_stride: int,
    topk: int,
    vocab_size: int,
    BLOCK_SIZE: int,
    TOPK_BLOCK_SIZE: int,
) -> None:
    """Log-probabilities of chosen tokens.

    logits float [num_rows, vocab_size], computed in float32; topk_ids int64 [num_rows, topk];
    output float32 [num_rows, topk].
    """
    logits = logits_ptr[:, :vocab_size]
    largest = logits.amax(dim=1, keepdim=True).float()
    total = (logits - largest).exp_().sum(dim=1, keepdim=True)
    chosen = logits.gather(1, topk_ids_ptr[:, :topk]).float()
    torch.sub(chosen - largest, total.log_(), out=output_ptr)


def ranks(
    output_ptr: torch.Tensor,
    logits_ptr: torch.Tensor,
    logits_stride: int,
    token_ids_ptr: torch.Tensor,
    vocab_size: int,
    BLOCK_SIZE: int,
) -> None:
    """Number of tokens at least as likely as each row's own token (int64 [num_rows]).

    logits float [num_rows, vocab_size]; token_ids int64 [num_rows].
    """
    logits = logits_ptr[:, :vocab_size]
    own = logits.gather(1, token_ids_ptr.long().unsqueeze(1))
    torch.sum(logits >= own, dim=1, dtype=output_ptr.dtype, out=output_ptr)


def fill_logprob_token_ids(
    out_token_ids_ptr: torch.Tensor,
    out_token_ids_stride: int,
    out_valid_mask_ptr: torch.Tensor,
    out_valid_mask_stride: int,
    sampled_token_ids_ptr: torch.Tensor,
    topk_indices_ptr: torch.Tensor,
    topk_indices_stride: int,
    expanded_idx_mapping_ptr: torch.Tensor,
    num_per_req_token_ids_ptr: torch.Tensor,
    per_req_token_ids_ptr: torch.Tensor,
    per_req_token_ids_stride: int,
    NUM_TOPK: int,
    PADDED_COLS: int,
) -> None:
    """Choose the tokens to report: the sampled one, then those the request names, or else the top.

    out_token_ids int64 and out_valid_mask bool [num_rows, 1 + num_cols], of which unused places
    stay as they were; sampled_token_ids int64 [num_rows]; topk_indices int32 [num_rows, NUM_TOPK]
    (any int32 tensor if NUM_TOPK is 0); num_per_req_token_ids int32 [max_num_reqs];
    per_req_token_ids int32 [max_num_reqs, max_entries].
    """
    num_rows, num_cols = out_token_ids_ptr.shape[0], out_token_ids_ptr.shape[1] - 1
    out_token_ids_ptr[:, 0] = sampled_token_ids_ptr[:num_rows]
    out_valid_mask_ptr[:, 0] = True
    slot = expanded_idx_mapping_ptr
    num_named = num_per_req_token_ids_ptr.index_select(0, slot).unsqueeze(1)
    order = torch.arange(num_cols, device=slot.device)
    for tokens, valid in (
        (per_req_token_ids_ptr[:, :num_cols].index_select(0, slot), order < num_named),
        (topk_indices_ptr[:num_rows, :NUM_TOPK], (order < NUM_TOPK) & (num_named == 0)),
    ):
        width = tokens.shape[1]
        target, chosen = out_token_ids_ptr[:, 1 : 1 + width], valid[:, :width]
        target.copy_(torch.where(chosen, tokens, target))
        out_valid_mask_ptr[:, 1 : 1 + width].logical_or_(chosen)


def prompt_logprobs_token_ids(
    prompt_logprobs_token_ids_ptr: torch.Tensor,
    query_start_loc_ptr: torch.Tensor,
    idx_mapping_ptr: torch.Tensor,
    num_computed_tokens_ptr: torch.Tensor,
    all_token_ids_ptr: torch.Tensor,
    all_token_ids_stride: int,
    BLOCK_SIZE: int,
) -> None:
    """The token that follows each token of the batch, int64 [num_tokens].

    query_start_loc int32 [>= num_reqs + 1]; idx_mapping int64 [num_reqs]; num_computed_tokens int32
    [max_num_reqs]; all_token_ids int32 [max_num_reqs, max_model_len]. Behind the end of a request
    there is no such token and the value means nothing.
    """
    num_reqs = idx_mapping_ptr.shape[0]
    if num_reqs == 0:
        return
    tokens = flat(all_token_ids_ptr)
    rows = ragged_rows(query_start_loc_ptr, num_reqs, prompt_logprobs_token_ids_ptr.shape[0])
    following = num_computed_tokens_ptr.index_select(0, idx_mapping_ptr) + 1
    first = idx_mapping_ptr * all_token_ids_stride + following - query_start_loc_ptr[:num_reqs]
    place = first.index_select(0, rows.row).add_(rows.item).clamp_(max=tokens.shape[0] - 1)
    store(prompt_logprobs_token_ids_ptr[: rows.size], tokens.index_select(0, place), rows.present)


KERNELS = {
    f"{MODULE}._topk_log_softmax_kernel": topk_log_softmax,
    f"{MODULE}._ranks_kernel": ranks,
    f"{MODULE}._fill_logprob_token_ids_kernel": fill_logprob_token_ids,
    "vllm.v1.worker.gpu.sample.prompt_logprob._prompt_logprobs_token_ids_kernel": (
        prompt_logprobs_token_ids
    ),
}
