# ruff: noqa: N803 -- parameters carry the names of the kernels' arguments
"""Torch forms of the kernels that weigh drafts against the target before any is accepted
(`vllm.v1.worker.gpu.spec_decode.rejection_sampler_utils`); see `verification.py` for the layout.
"""

from __future__ import annotations

from typing import Any

import torch

from vllm_deepinfer.ops.runner.extents import may_hold, selected_rows, store
from vllm_deepinfer.ops.runner.forms import later_form
from vllm_deepinfer.ops.runner.layout import vocabulary_blocks
from vllm_deepinfer.ops.runner.verification import Drafts, log_sum_exp, tempered_draft_logits

UTILS = "vllm.v1.worker.gpu.spec_decode.rejection_sampler_utils"


def local_logits_stats(
    target_local_argmax_ptr: torch.Tensor,
    target_local_argmax_stride: int,
    target_local_max_ptr: torch.Tensor,
    target_local_max_stride: int,
    target_local_sumexp_ptr: torch.Tensor,
    target_local_sumexp_stride: int,
    draft_local_max_ptr: torch.Tensor,
    draft_local_max_stride: int,
    draft_local_sumexp_ptr: torch.Tensor,
    draft_local_sumexp_stride: int,
    target_logits_ptr: torch.Tensor,
    target_logits_stride: int,
    draft_logits_ptr: torch.Tensor | None,
    draft_logits_stride_0: int,
    draft_logits_stride_1: int,
    expanded_idx_mapping_ptr: torch.Tensor,
    expanded_local_pos_ptr: torch.Tensor,
    temp_ptr: torch.Tensor,
    vocab_size: int,
    num_speculative_steps: int,
    BLOCK_SIZE: int,
    HAS_DRAFT_LOGITS: bool,
    *,
    judges_draft: torch.Tensor | None = None,
) -> None:
    """Summarise the logits of the rows that judge a draft, those before position
    num_speculative_steps (or `judges_draft`, bool [num_logits]).

    Greedy rows (temperature 0): target_local_argmax int64 and target_local_max float32; others:
    target_local_max and target_local_sumexp, and the same of the draft if HAS_DRAFT_LOGITS; all
    [num_logits, num_blocks]. expanded_idx_mapping int64 and expanded_local_pos int32 [num_logits];
    temp float32 [max_num_reqs]. Nothing else is written.
    """
    if target_logits_ptr.shape[0] == 0:
        return
    if judges_draft is None:
        judges_draft = expanded_local_pos_ptr < num_speculative_steps
    temp = temp_ptr.index_select(0, expanded_idx_mapping_ptr).float()
    target_logits = target_logits_ptr[:, :vocab_size]
    is_greedy, is_random = judges_draft & (temp == 0.0), judges_draft & (temp != 0.0)
    any_random = may_hold(is_random)
    if may_hold(is_greedy):
        # Taking the maximum of a bonus row, too, is cheaper than copying the others.
        rows = selected_rows(is_greedy) if any_random else None
        logits = target_logits if rows is None else target_logits.index_select(0, rows)
        _store_summary(
            logits.float(),
            rows,
            is_greedy,
            BLOCK_SIZE,
            target_local_max_ptr,
            token=target_local_argmax_ptr,
        )
    if not any_random:
        return
    rows = selected_rows(is_random)
    logits = target_logits.clone() if rows is None else target_logits.index_select(0, rows)
    _store_summary(
        logits.float(),
        rows,
        is_random,
        BLOCK_SIZE,
        target_local_max_ptr,
        total=target_local_sumexp_ptr,
    )
    if HAS_DRAFT_LOGITS:
        slot, step = expanded_idx_mapping_ptr, expanded_local_pos_ptr
        if rows is not None:
            slot, step, temp = (t.index_select(0, rows) for t in (slot, step, temp))
        logits = tempered_draft_logits(draft_logits_ptr[:, :, :vocab_size], slot, step, temp)
        _store_summary(
            logits,
            rows,
            is_random,
            BLOCK_SIZE,
            draft_local_max_ptr,
            total=draft_local_sumexp_ptr,
        )


def _store_summary(
    logits: torch.Tensor,
    rows: torch.Tensor | None,
    chosen: torch.Tensor,
    block_size: int,
    highest: torch.Tensor,
    token: torch.Tensor | None = None,
    total: torch.Tensor | None = None,
) -> None:
    """Write maximum and token, or maximum and sum, of each block of `logits` [n, vocab_size], which
    are the `rows` of the batch (None: all), where `chosen` (bool [num_logits]). The sum spends
    `logits`."""
    chosen = chosen.unsqueeze(1)
    for columns, blocks in vocabulary_blocks(logits, block_size):
        if token is not None:
            values, tokens = blocks.max(dim=2)
            first_token = torch.arange(columns.start, columns.stop, device=logits.device)
            found = (tokens.add_(first_token * block_size), token)
        else:
            values = blocks.amax(dim=2)
            # A block without a finite logit weighs nothing: exp(-inf - 0) sums to 0.
            base = values.masked_fill(values == float("-inf"), 0.0)
            found = (blocks.sub_(base.unsqueeze(2)).exp_().sum(dim=2), total)
        for result, output in ((values, highest), found):
            output = output[:, columns]
            if rows is None:
                store(output, result, chosen)
            else:
                output.index_copy_(0, rows, result)


@later_form(local_logits_stats, renamed={"num_speculative_steps": "num_logits"})
def local_logits_stats_but_bonus(
    *, num_logits: int, expanded_local_pos_ptr: torch.Tensor, **arguments: Any
) -> None:
    """As `local_logits_stats`, for every row that is not its request's last."""
    local_logits_stats(
        expanded_local_pos_ptr=expanded_local_pos_ptr,
        num_speculative_steps=0,
        judges_draft=_is_followed(expanded_local_pos_ptr, num_logits),
        **arguments,
    )


def _is_followed(local_pos: torch.Tensor, num_logits: int) -> torch.Tensor:
    """Whether the next row belongs to the same request, bool [num_logits]."""
    followed = torch.zeros(num_logits, dtype=torch.bool, device=local_pos.device)
    torch.ne(local_pos[1:num_logits], 0, out=followed[:-1])
    return followed


def cumulative_log_p(
    cumulative_log_p_ptr: torch.Tensor,
    target_logits_ptr: torch.Tensor,
    target_logits_stride: int,
    target_local_max_ptr: torch.Tensor,
    target_local_max_stride: int,
    target_local_sumexp_ptr: torch.Tensor,
    target_local_sumexp_stride: int,
    draft_sampled_ptr: torch.Tensor,
    draft_logits_ptr: torch.Tensor | None,
    draft_logits_stride_0: int,
    draft_logits_stride_1: int,
    draft_local_max_ptr: torch.Tensor,
    draft_local_max_stride: int,
    draft_local_sumexp_ptr: torch.Tensor,
    draft_local_sumexp_stride: int,
    cu_num_logits_ptr: torch.Tensor,
    idx_mapping_ptr: torch.Tensor,
    temp_ptr: torch.Tensor,
    vocab_num_blocks: int,
    PADDED_VOCAB_NUM_BLOCKS: int,
    HAS_DRAFT_LOGITS: bool,
) -> None:
    """log of the joint ratio of each request's drafts so far, capped at 0 after every draft
    (block verification), on the row that judges the draft: float32 [num_logits].

    draft_sampled int32 [num_logits], negative for no draft, which leaves the ratio as it was;
    cu_num_logits int32 [num_reqs + 1]; idx_mapping int64 [num_reqs]. Other rows keep theirs. Loops
    over the draft positions.
    """
    num_reqs = idx_mapping_ptr.shape[0]
    if num_reqs == 0:
        return
    most_steps = draft_logits_ptr.shape[1] if HAS_DRAFT_LOGITS else None
    drafts = Drafts(cu_num_logits_ptr, draft_sampled_ptr, idx_mapping_ptr, temp_ptr, most_steps)
    if drafts.num_steps == 0:
        return
    log_sums = [log_sum_exp(target_local_max_ptr, target_local_sumexp_ptr)]
    if HAS_DRAFT_LOGITS:
        log_sums.append(log_sum_exp(draft_local_max_ptr, draft_local_sumexp_ptr))
    target, draft = drafts.log_probabilities(target_logits_ptr, draft_logits_ptr, *log_sums)
    gain = target.sub_(draft).masked_fill_(~drafts.proposed, 0.0)
    ratio = gain.new_zeros(num_reqs)
    for step in range(drafts.num_steps):
        ratio = (ratio + gain[:, step]).clamp_(max=0.0)
        gain[:, step] = ratio
    drafts.store_on_rows(cumulative_log_p_ptr, gain, drafts.present & ~drafts.is_greedy)


def local_residual_mass(
    local_residual_mass_ptr: torch.Tensor,
    local_residual_mass_stride: int,
    cumulative_log_p_ptr: torch.Tensor,
    target_logits_ptr: torch.Tensor,
    target_logits_stride: int,
    target_local_max_ptr: torch.Tensor,
    target_local_max_stride: int,
    target_local_sumexp_ptr: torch.Tensor,
    target_local_sumexp_stride: int,
    draft_logits_ptr: torch.Tensor,
    draft_logits_stride_0: int,
    draft_logits_stride_1: int,
    draft_local_max_ptr: torch.Tensor,
    draft_local_max_stride: int,
    draft_local_sumexp_ptr: torch.Tensor,
    draft_local_sumexp_stride: int,
    draft_sampled_ptr: torch.Tensor,
    expanded_idx_mapping_ptr: torch.Tensor,
    expanded_local_pos_ptr: torch.Tensor,
    temp_ptr: torch.Tensor,
    vocab_size: int,
    num_speculative_steps: int,
    vocab_num_blocks: int,
    BLOCK_SIZE: int,
    PADDED_VOCAB_NUM_BLOCKS: int,
    *,
    judges_draft: torch.Tensor | None = None,
) -> None:
    """Mass of max(p * target - draft, 0) in each vocabulary block, p being the joint ratio before
    the row, for block verification: float32 [num_logits, num_blocks].

    Written for the rows of random requests that judge a draft (see `local_logits_stats`) which is
    neither the first nor a placeholder (draft_sampled int32 [num_logits] negative).
    """
    num_logits = target_logits_ptr.shape[0]
    if num_logits < 2:
        return
    local_pos, slot = expanded_local_pos_ptr, expanded_idx_mapping_ptr
    if judges_draft is None:
        judges_draft = local_pos < num_speculative_steps
    temp = temp_ptr.index_select(0, slot).float()
    needed = judges_draft & (local_pos != 0) & (temp != 0.0)
    needed[:-1] &= draft_sampled_ptr[1:num_logits] >= 0
    needed[-1] = False
    if not may_hold(needed):
        return
    rows = selected_rows(needed)
    if rows is None:
        rows = torch.arange(num_logits, device=slot.device)
    slot, step, temp = (t.index_select(0, rows) for t in (slot, local_pos, temp))
    target_log_sum = log_sum_exp(target_local_max_ptr, target_local_sumexp_ptr)
    draft_log_sum = log_sum_exp(draft_local_max_ptr, draft_local_sumexp_ptr)
    # Minus the log of the joint ratio, so that one exponential makes p * target.
    shift = target_log_sum.index_select(0, rows)
    shift -= cumulative_log_p_ptr.index_select(0, (rows - 1).clamp_(min=0))
    mass = target_logits_ptr[:, :vocab_size].index_select(0, rows).float()
    mass.sub_(shift.unsqueeze(1)).exp_()
    draft = tempered_draft_logits(draft_logits_ptr[:, :, :vocab_size], slot, step, temp)
    draft.sub_(draft_log_sum.index_select(0, rows).unsqueeze(1)).exp_()
    mass.sub_(draft).clamp_(min=0.0)
    for columns, blocks in vocabulary_blocks(mass, BLOCK_SIZE):
        output = local_residual_mass_ptr[:, columns]
        kept = output.index_select(0, rows)
        is_needed = needed.index_select(0, rows).unsqueeze(1)
        output.index_copy_(0, rows, torch.where(is_needed, blocks.sum(dim=2), kept))


@later_form(local_residual_mass, renamed={"num_speculative_steps": "num_logits"})
def local_residual_mass_but_bonus(
    *, num_logits: int, expanded_local_pos_ptr: torch.Tensor, **arguments: Any
) -> None:
    """As `local_residual_mass`, for every row that is not its request's last."""
    local_residual_mass(
        expanded_local_pos_ptr=expanded_local_pos_ptr,
        num_speculative_steps=0,
        judges_draft=_is_followed(expanded_local_pos_ptr, num_logits),
        **arguments,
    )


KERNELS = {
    f"{UTILS}._compute_local_logits_stats_kernel": local_logits_stats,
    f"{UTILS}._compute_cumulative_log_p_kernel": cumulative_log_p,
    f"{UTILS}._compute_local_residual_mass_kernel": local_residual_mass,
}
KERNELS_SINCE_0_33 = {
    f"{UTILS}._compute_local_logits_stats_kernel": local_logits_stats_but_bonus,
    f"{UTILS}._compute_local_residual_mass_kernel": local_residual_mass_but_bonus,
}
