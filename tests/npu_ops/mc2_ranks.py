"""MC2's operators among threads of one process, each a rank, written from CANN's description.

Rows arrive sorted by the expert that takes them, then by the rank they come from; what is behind
them is noise. ``route`` holds where each came from.
"""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch import Tensor


class Ranks:
    """What ``ranks`` threads tell each other."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self._barrier = threading.Barrier(ranks)
        self._told: list[Any] = [None] * ranks

    def exchange(self, rank: int, said: Any) -> list[Any]:
        """What every rank said, once all have."""
        self._told[rank] = said
        self._barrier.wait(30)
        told = list(self._told)
        self._barrier.wait(30)
        return told

    def npu_moe_distribute_dispatch_v2(
        self, x, expert_ids, group_ep, ep_world_size, ep_rank_id, moe_expert_num, *,
        scales=None, x_active_mask=None, expert_scales=None, elastic_info=None,
        performance_info=None, group_tp="", tp_world_size=0, tp_rank_id=0, expert_shard_type=0,
        shared_expert_num=1, shared_expert_rank_num=0, quant_mode=0, global_bs=0,
        expert_token_nums_type=1, comm_alg="", zero_expert_num=0, copy_expert_num=0,
        const_expert_num=0, y_dtype=None, x_dtype=None, scales_dtype=None,
    ):  # fmt: skip
        assert quant_mode == 0 and expert_token_nums_type == 1 and group_ep == "experts"
        assert expert_ids.dtype == torch.int32 and ep_world_size == self.ranks
        told = self.exchange(ep_rank_id, (x, scales, expert_ids, expert_scales))
        held = moe_expert_num // ep_world_size
        most = global_bs * min(held, expert_ids.shape[1])
        rows = torch.full((most, x.shape[1]), 0x7F, dtype=torch.uint8).view(x.dtype)
        received = torch.full((most, scales.shape[1]), 255, dtype=torch.uint8)
        factors, route = torch.full((most,), float("nan")), torch.zeros(most, 3, dtype=torch.int32)
        counts, place = torch.zeros(held, dtype=torch.int64), 0
        for expert in range(held):
            for source, (theirs, their_scales, ids, weights) in enumerate(told):
                for token, slot in (ids == ep_rank_id * held + expert).nonzero().tolist():
                    rows.view(torch.uint8)[place] = theirs.view(torch.uint8)[token]
                    received[place], factors[place] = their_scales[token], weights[token, slot]
                    route[place] = torch.tensor([source, token, slot])
                    place, counts[expert] = place + 1, counts[expert] + 1
        return rows, received, route, counts, torch.tensor([place]), None, factors

    def npu_moe_distribute_combine_v2(
        self, expand_x, expert_ids, assist_info_for_combine, ep_send_counts, expert_scales,
        group_ep, ep_world_size, ep_rank_id, moe_expert_num, *, tp_send_counts=None,
        x_active_mask=None, expand_scales=None, shared_expert_x=None, elastic_info=None,
        ori_x=None, const_expert_alpha_1=None, const_expert_alpha_2=None, const_expert_v=None,
        performance_info=None, group_tp="", tp_world_size=0, tp_rank_id=0, expert_shard_type=0,
        shared_expert_num=1, shared_expert_rank_num=0, global_bs=0, comm_quant_mode=0, comm_alg="",
        zero_expert_num=0, copy_expert_num=0, const_expert_num=0,
    ):  # fmt: skip
        used = int(ep_send_counts)
        sent = expand_x[:used], assist_info_for_combine[:used].tolist()
        total = torch.zeros(len(expert_ids), expand_x.shape[1], dtype=torch.float64)
        for outputs, route in self.exchange(ep_rank_id, sent):
            for output, (source, token, slot) in zip(outputs, route, strict=True):
                if source == ep_rank_id:
                    total[token] += float(expert_scales[token, slot]) * output.double()
        return total.to(expand_x.dtype)


def sends_to_the_next_token(ranks: Ranks):
    """A combine that mixes up the tokens it brings back."""

    def combine(*arguments, **keywords) -> Tensor:
        return ranks.npu_moe_distribute_combine_v2(*arguments, **keywords).roll(1, 1)

    return combine
