"""MC2: tokens to the ranks of their experts and back, each one operator over an HCCL group.

For steps in which no rank has more tokens than a group's ``capacity``; whether a step goes this way
is the communicator's decision, and all ranks must take the same. Rows travel as they are quantised,
so that experts see the same codes as without other ranks. The sum over a token's experts is the
operator's, rounded once to bfloat16 before the shared expert is added.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch_npu
from torch import Tensor

from vllm_deepinfer.ops import formats, reference, reference_linear
from vllm_deepinfer.ops.npu.calls.experts import grouped_experts
from vllm_deepinfer.ops.npu.selfcheck import VendorMismatchError, relative_error

NOT_QUANTISED_ON_THE_WAY = 0
COUNTS = 1
BOUND = 1e-2
"""Largest relative error, L2, of the check: a few inner codes are their neighbours."""


@dataclass(frozen=True)
class ExpertGroup:
    """Ranks that hold a layer's experts, neighbouring ones each, the same number on all.

    Attributes:
        name: of the HCCL communicator, ``backend.get_hccl_comm_name(rank)`` of a process group.
        capacity: most tokens of one rank in a step.
    """

    name: str
    ranks: int
    rank: int
    experts: int
    capacity: int

    def __post_init__(self) -> None:
        if self.experts % self.ranks:
            raise ValueError(
                f"{self.experts} experts on {self.ranks} ranks; MC2 takes a number of ranks that "
                "divides the experts."
            )


@dataclass(frozen=True)
class ExpertStacks:
    """Weights of the experts held here, as the operation ``fp4_experts`` takes them."""

    w1: Tensor
    w1_scale: Tensor
    w3: Tensor
    w3_scale: Tensor
    w2: Tensor
    w2_scale: Tensor


def routed_experts(
    rows: Tensor,
    scales: Tensor,
    chosen: Tensor,
    weights: Tensor,
    stacks: ExpertStacks,
    limit: float,
    group: ExpertGroup,
) -> Tensor:
    """Sums ``[T, D]``, bfloat16, of the experts each of this rank's tokens chose.

    Args:
        rows, scales: e4m3 codes ``[T, D]`` with scale bytes ``[T, D / 32]``; T at least 1.
        chosen, weights: int64 and float32 ``[T, k]``, the router's.
        limit: bound of the clamped SwiGLU.

    Raises:
        ValueError: there are more tokens than the group's capacity, or none.
    """
    if not 1 <= len(rows) <= group.capacity:
        raise ValueError(f"{len(rows)} tokens for MC2; allowed: 1 to {group.capacity}.")
    experts = chosen.to(torch.int32)
    received, received_scales, route, counts, sent_counts, _, factors = (
        torch_npu.npu_moe_distribute_dispatch_v2(
            rows,
            experts,
            group.name,
            group.ranks,
            group.rank,
            group.experts,
            scales=scales,
            expert_scales=weights,
            quant_mode=NOT_QUANTISED_ON_THE_WAY,
            global_bs=group.capacity * group.ranks,
            expert_token_nums_type=COUNTS,
        )
    )
    outputs = grouped_experts(
        received,
        received_scales,
        factors,
        counts.cumsum(0),
        *vars(stacks).values(),
        limit,
        torch.bfloat16,
    )
    # The experts have applied the router's weights, before their second product.
    return torch_npu.npu_moe_distribute_combine_v2(
        outputs,
        experts,
        route,
        sent_counts,
        torch.ones_like(weights),
        group.name,
        group.ranks,
        group.rank,
        group.experts,
        expand_scales=factors,
        global_bs=group.capacity * group.ranks,
    )


# -- check ----------------------------------------------------------------------------------------


def check(group: ExpertGroup, device: torch.device) -> None:
    """Compute a small case with the other ranks of the group, which must all call this.

    Raises:
        VendorMismatchError: this rank's result is not the reference's.
    """
    hidden, inter, chosen_each, limit = 128, 192, min(3, group.experts), 10.0
    generator = torch.Generator().manual_seed(950)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float32, device="cpu")

    shapes = ((inter, hidden), (inter, hidden), (hidden, inter))
    whole = [
        part
        for shape in shapes
        for part in formats.quantise_fp4_rows(normal(group.experts, *shape))
    ]
    # Every rank draws the same cases, of all ranks, and computes its own.
    for rank in range(group.ranks):
        tokens = 1 + rank % group.capacity
        rows, scales = reference_linear.quantise_fp8(normal(tokens, hidden))
        chosen, weights = (
            normal(tokens, group.experts).topk(chosen_each)[1],
            normal(tokens, chosen_each),
        )
        if rank == group.rank:
            arguments = rows, scales, chosen, weights
    outputs = reference_linear.fp4_experts(*arguments, *whole, 0, limit, torch.bfloat16)
    none = torch.zeros(len(outputs), hidden, dtype=torch.float32, device="cpu")
    wanted = reference.sum_experts(outputs, arguments[2], none, torch.bfloat16)
    each = group.experts // group.ranks
    held = slice(group.rank * each, (group.rank + 1) * each)
    stacks = ExpertStacks(*(part[held].contiguous().to(device) for part in whole))
    found = routed_experts(*(x.to(device) for x in arguments), stacks, limit, group).cpu()
    error = relative_error(found, wanted) if found.shape == wanted.shape else float("inf")
    if not error <= BOUND:
        raise VendorMismatchError(
            f"MC2 over {group.ranks} ranks differs from the reference by {error:.1e} on rank "
            f"{group.rank} (allowed: {BOUND:.0e}), so no text would be right. Exchange tokens by "
            "all-gather instead, or report it to the vendor."
        )
