"""MC2: tokens to the ranks of their experts and back, each one operator over an HCCL group.

For steps in which no rank has more tokens than the group's buffer holds; whether it is used is the
communicator's decision. All ranks call both, in the same order, with the same ``capacity``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch_npu
from torch import Tensor

from vllm_deepinfer.ops.formats import FP8_GROUP

MX_QUANTISED = 4
COUNTS = 1


@dataclass(frozen=True)
class ExpertGroup:
    """Where experts are.

    Attributes:
        name: the HCCL group, ``backend.get_hccl_comm_name(rank)`` of torch's process group.
        ranks, rank: how many ranks it has, and which this one is.
        experts: routed experts of a layer, the same number on every rank.
        capacity: most tokens of one rank in a step.
    """

    name: str
    ranks: int
    rank: int
    experts: int
    capacity: int


@dataclass(frozen=True)
class Dispatched:
    """What arrived: rows sorted by the experts held here, of all ranks.

    Attributes:
        rows: e4m3 codes ``[n, D]``; scales: UE8M0 bytes ``[n, D / 32]``, uint8. Both are as long as
            the most that could have arrived; ``counts`` says what is used.
        counts: int64 ``[experts held]``, rows of each expert.
        weights: float32 ``[n]``, the router's weight of each row.
        route, received: what ``combine`` sends rows back by.
    """

    rows: Tensor
    scales: Tensor
    counts: Tensor
    weights: Tensor
    route: Tensor
    received: Tensor


def dispatch(x: Tensor, chosen: Tensor, weights: Tensor, group: ExpertGroup) -> Dispatched:
    """Send bfloat16 ``[T, D]``, quantised on its way, to the experts ``chosen`` ``[T, k]``."""
    rows, scales, route, counts, received, _, sent_weights = (
        torch_npu.npu_moe_distribute_dispatch_v2(
            x,
            chosen.to(torch.int32),
            group.name,
            group.ranks,
            group.rank,
            group.experts,
            expert_scales=weights,
            quant_mode=MX_QUANTISED,
            global_bs=group.capacity * group.ranks,
            expert_token_nums_type=COUNTS,
            y_dtype=torch_npu.float8_e4m3fn,
        )
    )
    scales = scales.view(torch.uint8).flatten(1)[:, : x.shape[1] // FP8_GROUP]
    return Dispatched(rows, scales, counts, sent_weights, route, received)


def combine(outputs: Tensor, chosen: Tensor, dispatched: Dispatched, group: ExpertGroup) -> Tensor:
    """Sums ``[T, D]`` of the experts' outputs ``[n, D]`` of this rank's tokens.

    The router's weights are not applied again: the experts have applied them before their second
    product, as the model does.
    """
    return torch_npu.npu_moe_distribute_combine_v2(
        outputs,
        chosen.to(torch.int32),
        dispatched.route,
        dispatched.received,
        torch.ones(chosen.shape, dtype=torch.float32, device=outputs.device),
        group.name,
        group.ranks,
        group.rank,
        group.experts,
        expand_scales=dispatched.weights,
        global_bs=group.capacity * group.ranks,
    )
