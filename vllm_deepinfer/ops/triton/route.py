"""The router's choice, one token a program."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra import libdevice

from vllm_deepinfer.ops import router
from vllm_deepinfer.ops.triton.selection import order_of


@triton.jit
def route_kernel(
    logits,
    bias,
    chosen,
    weights,
    num_experts,
    factor,
    count: tl.constexpr,
    normalise: tl.constexpr,
    tile_experts: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    expert = tl.arange(0, tile_experts)
    available = expert < num_experts
    logit = tl.load(logits + token * num_experts + expert, mask=available, other=0.0)
    # Beyond 20 the softplus of a number is the number itself, in float32.
    bounded = tl.minimum(logit, 20.0, propagate_nan=tl.PropagateNan.ALL)
    soft = tl.where(logit > 20.0, logit, libdevice.log1p(libdevice.exp(bounded)))
    score = tl.sqrt_rn(soft)
    order = order_of(score + tl.load(bias + expert, mask=available, other=0.0))
    taken = expert < 0
    for _ in tl.static_range(count):
        left = available & (taken == 0)
        highest = tl.max(tl.where(left, order, -1), axis=0)
        best = tl.where(left & (order == highest), expert, tile_experts)
        taken |= expert == tl.min(best, axis=0)
    place = token * count + tl.cumsum(taken.to(tl.int32), axis=0) - 1
    weight = score
    if normalise and count > 1:
        total = tl.sum(tl.where(taken, score, 0.0), axis=0) + 1e-20
        weight = tl.div_rn(score, tl.broadcast_to(total, (tile_experts,)))
    tl.store(chosen + place, expert.to(tl.int64), mask=taken)
    tl.store(weights + place, weight * factor, mask=taken)


def route(
    logits: Tensor, bias: Tensor, count: int, normalise: bool, factor: float
) -> tuple[Tensor, Tensor]:
    """Experts ``[T, count]``, ascending, by ``sqrt(softplus(logits)) + bias``, and weights."""
    chosen, weights = router._route_fake(logits, bias, count, normalise, factor)
    if chosen.numel():
        num_experts = logits.shape[1]
        route_kernel[len(logits),](
            logits.contiguous(), bias.contiguous(), chosen, weights, num_experts, factor,
            count=count, normalise=normalise, tile_experts=triton.next_power_of_2(num_experts),
            num_warps=4, enable_fp_fusion=False,
        )  # fmt: skip
    return chosen, weights
