"""The routed experts as grouped products of e4m3 rows and packed e2m1 weights (section 2.10).

Slots are sorted by expert, those of experts held elsewhere last; the groups end before them.
"""

from __future__ import annotations

import torch
import torch_npu
from torch import Tensor

from vllm_deepinfer.ops import experts
from vllm_deepinfer.ops.npu import layouts
from vllm_deepinfer.ops.npu.calls.quantised import quantised_pairs
from vllm_deepinfer.ops.reference import clamped_swiglu

ONE_OUTPUT = 2
ROWS_ARE_GROUPED = 0
GROUPS_BY_THEIR_END = 0


def fp4_experts(
    x, scales, chosen, weights, w1, w1_scale, w3, w3_scale, w2, w2_scale, first_expert, limit, dtype
) -> Tensor:
    experts._check(
        x, scales, chosen, weights, w1, w1_scale, w3, w3_scale, w2, w2_scale, first_expert, limit,
        dtype,
    )  # fmt: skip
    slots = chosen.flatten() - first_expert
    held = (slots >= 0) & (slots < len(w1))
    order = torch.where(held, slots, len(w1)).argsort(stable=True)
    ends = expert_ends(slots[order], held[order], len(w1))
    tokens = order // chosen.shape[1]
    rows = x.view(torch.uint8)[tokens].view(x.dtype)
    factors = weights.flatten()[order]
    stacks = (w1, w1_scale, w3, w3_scale, w2, w2_scale)
    down = grouped_experts(rows, scales[tokens], factors, ends, *stacks, limit, dtype)
    # Rows behind the last group were never written.
    down = torch.where(held[order].unsqueeze(1), down, 0.0)
    return down[order.argsort()].unflatten(0, tuple(chosen.shape))


def grouped_experts(
    rows: Tensor,
    scales: Tensor,
    factors: Tensor,
    ends: Tensor,
    w1: Tensor,
    w1_scale: Tensor,
    w3: Tensor,
    w3_scale: Tensor,
    w2: Tensor,
    w2_scale: Tensor,
    limit: float,
    dtype: torch.dtype,
) -> Tensor:
    """Outputs ``[n, D]`` of e4m3 rows ``[n, D]`` sorted by expert; ``factors`` ``[n]`` are the
    router's weights, ``ends`` where each expert's rows end."""
    gate = grouped_product(rows, scales, w1, w1_scale, ends, dtype)
    up = grouped_product(rows, scales, w3, w3_scale, ends, dtype)
    inner = (clamped_swiglu(gate, up, limit) * factors.unsqueeze(1)).to(dtype)
    codes, pairs = quantised_pairs(inner)
    inner_scales = layouts.scales_of_pairs(pairs, w1.shape[1] // experts.FP4_GROUP)
    return grouped_product(codes, inner_scales, w2, w2_scale, ends, dtype)


def expert_ends(slots: Tensor, held: Tensor, num_experts: int) -> Tensor:
    """Where each expert's rows end, int64 ``[experts]``, of sorted ``slots``."""
    numbers = torch.arange(num_experts, device=slots.device)
    return torch.searchsorted(torch.where(held, slots, num_experts), numbers, right=True)


def grouped_product(
    rows: Tensor, scales: Tensor, weight: Tensor, scale: Tensor, ends: Tensor, dtype: torch.dtype
) -> Tensor:
    """e4m3 rows ``[n, in]`` sorted by expert, times their experts' weights: ``[n, out]``."""
    return torch_npu.npu_grouped_matmul(
        [rows],
        [layouts.expert_weights(weight)],
        antiquant_scale=[layouts.expert_weight_scales(scale)],
        per_token_scale=[layouts.scale_pairs(scales)],
        group_list=ends,
        split_item=ONE_OUTPUT,
        group_type=ROWS_ARE_GROUPED,
        group_list_type=GROUPS_BY_THEIR_END,
        output_dtype=dtype,
        weight_dtype=torch_npu.float4_e2m1fn_x2,
        per_token_scale_dtype=torch_npu.float8_e8m0fnu,
    )[0]
