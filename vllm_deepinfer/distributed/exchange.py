"""Expert parallelism over vLLM's expert-parallel group: see ``ExpertExchange``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from vllm.distributed.parallel_state import get_ep_group

from vllm_deepinfer.models.deepseek_v41.expert_exchange import (
    ExpertExchange,
    LocalExperts,
    RankRows,
    contiguous_share,
)

if TYPE_CHECKING:
    from vllm.config import VllmConfig

    from vllm_deepinfer.models.deepseek_v41.step import Step

# Told with the number of rows, so that ranks that are out of step notice.
PASSES = ("target", "draft")


class OutOfStepError(RuntimeError):
    """Ranks run different forward passes at the same time."""


class GroupExchange:
    """Weights spread over the ranks of a group that has ``all_gatherv`` and ``reduce_scatterv``.

    Args:
        group: a vLLM ``GroupCoordinator`` or a communicator.
        forward_pass: which of ``PASSES`` the rows belong to.
    """

    def __init__(self, group: Any, forward_pass: str) -> None:
        self.group = group
        self._pass = PASSES.index(forward_pass)

    @property
    def num_ranks(self) -> int:
        return self.group.world_size

    def held(self, count: int) -> range:
        return contiguous_share(count, self.group.rank_in_group, self.num_ranks)

    def row_counts(self, num_rows: int) -> RankRows:
        told = self.group.all_gather(torch.tensor([[self._pass, num_rows]]), dim=0)
        passes, counts = told.unbind(1)
        if passes.unique().numel() > 1:
            running = ", ".join(PASSES[number] for number in passes.tolist())
            raise OutOfStepError(
                f"ranks 0 to {len(passes) - 1} run different forward passes at the same time: "
                f"{running}."
            )
        return tuple(counts.tolist())

    def equal_row_counts(self, num_rows: int) -> RankRows:
        return (num_rows,) * self.num_ranks

    def gather(self, tensors: list[Tensor], rank_rows: RankRows) -> list[Tensor]:
        return self.group.all_gatherv(tensors, dim=0, sizes=list(rank_rows))

    def bring_back(self, outputs: Tensor, rank_rows: RankRows) -> Tensor:
        return self.group.reduce_scatterv(outputs, dim=0, sizes=list(rank_rows))


def rank_rows(exchange: ExpertExchange, step: Step, is_captured: bool) -> RankRows:
    """Rows of every rank in the step: asked for, but in a captured step, which all ranks pad to one
    size and replay together."""
    if is_captured:
        return exchange.equal_row_counts(step.num_tokens)
    return exchange.row_counts(step.num_tokens)


def expert_exchange(vllm_config: VllmConfig, forward_pass: str) -> ExpertExchange:
    """The exchange a configuration asks for: over its ranks, or none."""
    parallel = vllm_config.parallel_config
    if parallel.enable_expert_parallel and parallel.data_parallel_size > 1:
        return GroupExchange(get_ep_group(), forward_pass)
    return LocalExperts()
