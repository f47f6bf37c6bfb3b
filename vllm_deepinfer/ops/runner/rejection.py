# ruff: noqa: N803 -- parameters carry the names of the kernels' arguments
"""Torch forms of the kernel that accepts or rejects drafts
(`vllm.v1.worker.gpu.spec_decode.rejection_sampler_utils._rejection_kernel`); see `verification.py`
for the layout.

A greedy request accepts a draft that is the target's best token. Any other accepts draft x with
probability min(1, target(x) / draft(x)), or, with block verification, as many drafts as a joint
test allows. Both leave exactly the target's distribution once a rejected token is drawn again
(`resampling.py`). The uniform number of a test depends on the request's seed and the position only.
"""

from __future__ import annotations

from typing import Any

import torch

from vllm_deepinfer.ops.runner.extents import may_hold, store
from vllm_deepinfer.ops.runner.forms import later_form
from vllm_deepinfer.ops.runner.philox import acceptance_uniform
from vllm_deepinfer.ops.runner.verification import Drafts, best_token, log_sum_exp

UTILS = "vllm.v1.worker.gpu.spec_decode.rejection_sampler_utils"


def reject(
    sampled_ptr: torch.Tensor,
    sampled_stride: int,
    rejected_steps_ptr: torch.Tensor,
    target_rejected_logsumexp_ptr: torch.Tensor,
    draft_rejected_logsumexp_ptr: torch.Tensor,
    target_logits_ptr: torch.Tensor,
    target_logits_stride: int,
    target_local_argmax_ptr: torch.Tensor,
    target_local_argmax_stride: int,
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
    seed_ptr: torch.Tensor,
    pos_ptr: torch.Tensor,
    synthetic_conditional_rates_ptr: torch.Tensor | None,
    cumulative_log_p_ptr: torch.Tensor | None,
    local_residual_mass_ptr: torch.Tensor | None,
    local_residual_mass_stride: int,
    vocab_num_blocks: int,
    PADDED_VOCAB_NUM_BLOCKS: int,
    HAS_DRAFT_LOGITS: bool,
    SYNTHETIC_MODE: bool,
    USE_BLOCK_VERIFICATION: bool,
    *,
    step_in_seed: bool = False,
) -> None:
    """Accept the leading drafts of each request.

    sampled int64 [num_reqs, num_speculative_steps + 1] takes the tested drafts, and, for a greedy
    request, the target's best token in place of the first rejected one; rejected_steps int32
    [num_reqs] the number accepted; the two log-sums float32 [num_reqs] are those of the row last
    tested (of the rejected one with block verification), 0 for a greedy request or if there is
    none. Per-block statistics [num_logits, num_blocks] and cumulative_log_p [num_logits] are those
    of `draft_statistics.py`; draft_sampled int32 and pos int64 [num_logits]; temp float32 and seed
    int64 [max_num_reqs]; cu_num_logits int32 [> num_reqs]; idx_mapping int64 [num_reqs].

    SYNTHETIC_MODE accepts with the given rates (float32 [num_speculative_steps]) whatever the
    token. `step_in_seed` (vLLM 0.33) gives each step of block verification numbers of its own.
    """
    num_reqs = idx_mapping_ptr.shape[0]
    if num_reqs == 0:
        return
    most_steps = sampled_ptr.shape[1] - 1
    drafts = Drafts(cu_num_logits_ptr, draft_sampled_ptr, idx_mapping_ptr, temp_ptr, most_steps)
    for output in (rejected_steps_ptr, target_rejected_logsumexp_ptr, draft_rejected_logsumexp_ptr):
        output[:num_reqs] = 0
    if drafts.num_steps == 0:
        return
    is_random = ~drafts.is_greedy
    any_greedy, any_random = may_hold(drafts.is_greedy), may_hold(is_random)
    log_sums = []
    if any_random:
        log_sums.append(log_sum_exp(target_local_max_ptr, target_local_sumexp_ptr))
        if HAS_DRAFT_LOGITS:
            log_sums.append(log_sum_exp(draft_local_max_ptr, draft_local_sumexp_ptr))
    if any_random or SYNTHETIC_MODE:
        seeds = seed_ptr.index_select(0, drafts.slot).unsqueeze(1)
        if step_in_seed and USE_BLOCK_VERIFICATION:
            seeds = seeds ^ (drafts.step << 32)
        uniform = acceptance_uniform(seeds, pos_ptr[drafts.row])

    passes, tokens = torch.ones_like(drafts.present), drafts.token
    if any_random and not SYNTHETIC_MODE and not USE_BLOCK_VERIFICATION:
        target, draft = drafts.log_probabilities(target_logits_ptr, draft_logits_ptr, *log_sums)
        passes = target > uniform.log() + draft
    if any_greedy:
        best = best_token(target_local_max_ptr, target_local_argmax_ptr)[drafts.row]
        passes = torch.where(drafts.is_greedy, best == tokens, passes)
    if SYNTHETIC_MODE:
        passes = uniform < synthetic_conditional_rates_ptr[: drafts.num_steps]
    passes &= drafts.proposed
    num_accepted = _num_leading(passes)
    tested = drafts.step <= num_accepted.unsqueeze(1)
    tested &= drafts.proposed | (drafts.present & drafts.is_greedy)
    last_tested = tested.sum(dim=1) - 1
    if USE_BLOCK_VERIFICATION and any_random:
        ratio = cumulative_log_p_ptr[drafts.row].exp_()
        if HAS_DRAFT_LOGITS:
            residual = local_residual_mass_ptr.sum(dim=1)[drafts.next_row]
        else:
            target, _ = drafts.log_probabilities(target_logits_ptr, None, *log_sums)
            residual = ratio * (1.0 - target.exp_().roll(-1, dims=1))
        chain = drafts.step < _num_leading(drafts.proposed).unsqueeze(1)
        length = _joint_length(drafts, uniform, ratio, residual, chain)
        tested = torch.where(is_random, chain, tested)
        num_accepted = torch.where(is_random.squeeze(1), length, num_accepted)
        # The row a rejected token is drawn from; none if nothing was rejected.
        last_tested = torch.where(length < drafts.count, length, -1)

    if any_greedy:
        tokens = torch.where(drafts.is_greedy & ~passes, best, tokens)
    store(sampled_ptr[:num_reqs, : drafts.num_steps], tokens, tested)
    rejected_steps_ptr[:num_reqs] = num_accepted
    if any_random:
        has_sum = is_random.squeeze(1) & (last_tested >= 0)
        row = (drafts.first_row + last_tested).clamp_(min=0)
        outputs = (target_rejected_logsumexp_ptr, draft_rejected_logsumexp_ptr)
        for output, log_sum in zip(outputs, log_sums, strict=False):
            output[:num_reqs] = log_sum.index_select(0, row).masked_fill_(~has_sum, 0.0)


def _num_leading(flags: torch.Tensor) -> torch.Tensor:
    """How many of each row's flags (bool [num_reqs, n]) are set before the first that is not."""
    return flags.long().cumprod(dim=1).sum(dim=1)


def _joint_length(
    drafts: Drafts,
    uniform: torch.Tensor,
    ratio: torch.Tensor,
    residual: torch.Tensor,
    chain: torch.Tensor,
) -> torch.Tensor:
    """How many drafts block verification accepts, int64 [num_reqs]: up to the last that passes.

    All [num_reqs, num_steps]: joint ratio after each draft, residual mass on the row behind it
    (used where that row judges a draft, too), and the drafts before the first placeholder.
    """
    is_inner = drafts.proposed.roll(-1, dims=1)
    is_inner[:, -1] = False
    scale = residual + 1.0 - ratio
    threshold = torch.where(scale > 0.0, residual / scale, 1.0)
    threshold = torch.where(is_inner, threshold, ratio)
    passes = chain & (uniform <= threshold)
    return (passes * (drafts.step + 1)).amax(dim=1)


@later_form(
    reject,
    inserted={
        "local_residual_mass_stride": ("fly_entropy_ptr", "fly_entropy_threshold"),
        "USE_BLOCK_VERIFICATION": ("FLY_WINDOW_SIZE",),
    },
)
def reject_or_defer(
    *,
    fly_entropy_ptr: torch.Tensor | None,
    fly_entropy_threshold: float,
    FLY_WINDOW_SIZE: int,
    **arguments: Any,
) -> None:
    """As `reject`, with numbers of its own for each step of block verification.

    Raises:
        NotImplementedError: FLY_WINDOW_SIZE is not 0: that method keeps drafts the target rejects.
    """
    if FLY_WINDOW_SIZE:
        raise NotImplementedError(
            f"rejection_sample_method 'fly' (window size {FLY_WINDOW_SIZE}) keeps drafts that the "
            f"target rejects, so its output is not the target's. Allowed in --speculative-config: "
            f"'standard', 'block', 'synthetic'."
        )
    reject(**arguments, step_in_seed=True)


KERNELS = {f"{UTILS}._rejection_kernel": reject}
KERNELS_SINCE_0_33 = {f"{UTILS}._rejection_kernel": reject_or_defer}
