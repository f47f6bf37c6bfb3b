# ruff: noqa: N803 -- parameters carry the names of the kernels' arguments
"""Torch forms of the kernels that draw the token behind a request's accepted drafts
(`vllm.v1.worker.gpu.spec_decode.rejection_sampler_utils`); see `verification.py` for the layout.

If every draft was accepted that is the bonus token, drawn from the target's distribution. If one
was rejected it is drawn from the residual max(target - draft, 0), which together with the
acceptance test leaves the target's distribution. The noise of a draw depends on the request's seed
and the position only, and differs from the noise the draft was drawn with.
"""

from __future__ import annotations

import torch

from vllm_deepinfer.ops.runner.extents import may_hold, selected_rows, store
from vllm_deepinfer.ops.runner.gumbel import blockwise_max, with_noise
from vllm_deepinfer.ops.runner.layout import ban
from vllm_deepinfer.ops.runner.verification import best_token, tempered_draft_logits

UTILS = "vllm.v1.worker.gpu.spec_decode.rejection_sampler_utils"


def resample(
    resampled_local_argmax_ptr: torch.Tensor,
    resampled_local_argmax_stride: int,
    resampled_local_max_ptr: torch.Tensor,
    resampled_local_max_stride: int,
    target_logits_ptr: torch.Tensor,
    target_logits_stride: int,
    target_rejected_logsumexp_ptr: torch.Tensor,
    draft_logits_ptr: torch.Tensor | None,
    draft_logits_stride_0: int,
    draft_logits_stride_1: int,
    draft_rejected_logsumexp_ptr: torch.Tensor,
    rejected_step_ptr: torch.Tensor,
    cu_num_logits_ptr: torch.Tensor,
    expanded_idx_mapping_ptr: torch.Tensor,
    draft_sampled_ptr: torch.Tensor,
    temp_ptr: torch.Tensor,
    seed_ptr: torch.Tensor,
    pos_ptr: torch.Tensor,
    cumulative_log_p_ptr: torch.Tensor | None,
    contexts_ptr: torch.Tensor | None,
    contexts_stride: int,
    watermarking_ptr: torch.Tensor | None,
    watermarking_skip_mask_ptr: torch.Tensor | None,
    watermark_key_0: int,
    watermark_key_1: int,
    vocab_size: int,
    BLOCK_SIZE: int,
    HAS_DRAFT_LOGITS: bool,
    USE_FP64: bool,
    USE_BLOCK_VERIFICATION: bool,
    CONTEXT_WIDTH: int,
    WATERMARK: bool,
    DEDUPLICATE_CONTEXTS: bool,
) -> None:
    """Best token of the noisy logits within each vocabulary block, for the row behind the accepted
    drafts: resampled_local_argmax int64 and resampled_local_max float32 (float64 if USE_FP64)
    [num_reqs, num_blocks].

    rejected_step int32 [num_reqs] is the number accepted, the log-sums float32 [num_reqs] are those
    of `rejection.reject`, cumulative_log_p float32 [num_logits] that of `draft_statistics`;
    cu_num_logits int32 [> num_reqs]; expanded_idx_mapping int64, draft_sampled int32, pos int64
    [num_logits]; temp float32 and seed int64 [max_num_reqs]. A greedy request with a rejected draft
    is left out: its token is known.

    A residual without mass, which only rounding can leave behind a rejection, is replaced by the
    target's distribution; upstream would draw token 0.

    Raises:
        NotImplementedError: WATERMARK is set.
    """
    if WATERMARK:
        raise NotImplementedError(
            "watermarked sampling has no torch form; drop the watermark configuration"
        )
    num_reqs = rejected_step_ptr.shape[0]
    if num_reqs == 0:
        return
    step = rejected_step_ptr.long()
    row = cu_num_logits_ptr[:num_reqs] + step
    is_bonus = row == cu_num_logits_ptr[1 : num_reqs + 1] - 1
    slot = expanded_idx_mapping_ptr.index_select(0, row)
    temp = temp_ptr.index_select(0, slot).float()
    drawn = is_bonus | (temp != 0.0)
    if not may_hold(drawn):
        return
    behind = (row + 1).clamp_(max=draft_sampled_ptr.shape[0] - 1)
    rejected = draft_sampled_ptr.index_select(0, behind).long()
    target_log_sum, draft_log_sum = target_rejected_logsumexp_ptr, draft_rejected_logsumexp_ptr
    rows = selected_rows(drawn)
    if rows is not None:
        step, row, is_bonus, slot, temp, rejected, target_log_sum, draft_log_sum = (
            t.index_select(0, rows)
            for t in (step, row, is_bonus, slot, temp, rejected, target_log_sum, draft_log_sum)
        )
    logits = target_logits_ptr[:, :vocab_size].index_select(0, row).float()
    is_residual = ~is_bonus & (rejected >= 0) & (temp != 0.0)
    if may_hold(is_residual):
        if HAS_DRAFT_LOGITS:
            if USE_BLOCK_VERIFICATION:
                log_p = cumulative_log_p_ptr.index_select(0, (row - 1).clamp_(min=0))
                target_log_sum = target_log_sum - log_p.masked_fill_(step == 0, 0.0)
            _subtract_draft(
                logits,
                is_residual,
                draft_logits_ptr[:, :, :vocab_size],
                slot,
                step,
                temp,
                target_log_sum,
                draft_log_sum,
            )
        else:
            ban(logits, rejected.unsqueeze(1), is_residual.unsqueeze(1))
    seeds, positions = seed_ptr.index_select(0, slot), pos_ptr.index_select(0, row)
    scores = with_noise(logits, temp != 0.0, seeds, positions, USE_FP64)
    outputs = (resampled_local_max_ptr[:num_reqs], resampled_local_argmax_ptr[:num_reqs])
    found = [output.new_empty(row.shape[0], output.shape[1]) for output in outputs]
    blockwise_max(scores, BLOCK_SIZE, *found)
    for output, values in zip(outputs, found, strict=True):
        if rows is None:
            store(output, values, drawn.unsqueeze(1))
        else:
            output.index_copy_(0, rows, values)


def _subtract_draft(
    logits: torch.Tensor,
    is_residual: torch.Tensor,
    draft_logits: torch.Tensor,
    *drafted: torch.Tensor,
) -> None:
    """Replace target logits [n, vocab_size] by those of the residual in the rows `is_residual`.

    drafted, each [n]: slot, step, temperature, log-sum of the target (less the log of the joint
    ratio with block verification) and of the draft.
    """
    rows = selected_rows(is_residual)
    target = logits
    if rows is not None:
        target = logits.index_select(0, rows)
        drafted = tuple(tensor.index_select(0, rows) for tensor in drafted)
    slot, step, temp, target_log_sum, draft_log_sum = drafted
    residual = target - target_log_sum.unsqueeze(1)
    ratio = tempered_draft_logits(draft_logits, slot, step, temp)
    ratio.sub_(draft_log_sum.unsqueeze(1)).sub_(residual).exp_()
    # log(exp(a) - exp(b)) = a + log(1 - exp(b - a)); not a number where both are -inf.
    has_mass = ratio < 1.0
    residual.add_(ratio.neg_().log1p_()).masked_fill_(~has_mass, float("-inf"))
    kept = ~has_mass.any(dim=1)
    if may_hold(kept):
        residual = torch.where(kept.unsqueeze(1), target, residual)
    if rows is None:
        store(logits, residual, is_residual.unsqueeze(1))
    else:
        logits.index_copy_(0, rows, residual)


def insert_resampled(
    sampled_ptr: torch.Tensor,
    sampled_stride: int,
    num_sampled_ptr: torch.Tensor,
    resampled_local_argmax_ptr: torch.Tensor,
    resampled_local_argmax_stride: int,
    resampled_local_max_ptr: torch.Tensor,
    resampled_local_max_stride: int,
    resample_num_blocks: int,
    cu_num_logits_ptr: torch.Tensor,
    expanded_idx_mapping_ptr: torch.Tensor,
    temp_ptr: torch.Tensor,
    PADDED_RESAMPLE_NUM_BLOCKS: int,
) -> None:
    """Append the token drawn by `resample` to each request's sampled ones.

    sampled int64 [num_reqs, num_speculative_steps + 1]; num_sampled int32 [num_reqs], the number of
    accepted drafts before, one more after. A greedy request with a rejected draft has its token
    already; the lowest token wins a tie and a NaN counts as the lowest.
    """
    num_reqs = num_sampled_ptr.shape[0]
    if num_reqs == 0:
        return
    column = num_sampled_ptr.long().unsqueeze(1)
    row = cu_num_logits_ptr[:num_reqs] + num_sampled_ptr
    is_bonus = row == cu_num_logits_ptr[1 : num_reqs + 1] - 1
    slot = expanded_idx_mapping_ptr.index_select(0, row)
    inserted = is_bonus | (temp_ptr.index_select(0, slot) != 0.0)
    drawn = best_token(resampled_local_max_ptr, resampled_local_argmax_ptr)[:num_reqs]
    sampled = sampled_ptr[:num_reqs]
    tokens = torch.where(inserted, drawn, sampled.gather(1, column).squeeze(1))
    sampled.scatter_(1, column, tokens.unsqueeze(1))
    num_sampled_ptr += 1


KERNELS = {
    f"{UTILS}._resample_kernel": resample,
    f"{UTILS}._insert_resampled_kernel": insert_resampled,
}
