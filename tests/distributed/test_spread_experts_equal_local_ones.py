"""Experts spread over ranks give every bit that the same experts give on one rank.

Claim: for two and three ranks, numbers of experts that do not divide, ranks without tokens or
without experts, and tokens that all choose one rank's experts. If this breaks, the text depends on
how many ranks serve it.
"""

from __future__ import annotations

import dataclasses

import pytest
from distributed import rank_work

from vllm_deepinfer.models.deepseek_v41.config import V41Config
from vllm_deepinfer.models.deepseek_v41.expert_exchange import contiguous_share
from vllm_deepinfer.models.deepseek_v41.moe import ExpertCounts
from vllm_deepinfer.models.deepseek_v41.presets import preset

CONFIG = dataclasses.replace(
    V41Config.from_dict(preset("tiny")), hidden_size=64, moe_intermediate_size=32
)


@pytest.mark.parametrize(
    ("num_experts", "sizes", "favoured"),
    [
        (8, [3, 5], []),
        (7, [4, 0], []),
        (5, [2, 0, 3], []),
        (7, [6, 2], [0, 1]),
        (6, [1, 2, 3], [4, 5]),
        (2, [2, 1, 2], []),
    ],
    ids=str,
)
def test_outputs_have_the_same_bits(ranks, num_experts, sizes, favoured):
    counts = ExpertCounts(num_experts, 2)
    held = ranks.run(len(sizes), rank_work.experts_equal_local, CONFIG, counts, sizes, favoured)
    assert held == [len(contiguous_share(num_experts, r, len(sizes))) for r in range(len(sizes))]


@pytest.mark.parametrize("num_ranks", range(1, 9))
@pytest.mark.parametrize("num_experts", [1, 2, 7, 8, 128])
def test_every_expert_has_one_rank(num_experts, num_ranks):
    shares = [contiguous_share(num_experts, rank, num_ranks) for rank in range(num_ranks)]
    assert [expert for share in shares for expert in share] == list(range(num_experts))
    sizes = [len(share) for share in shares]
    assert sizes == sorted(sizes, reverse=True) and max(sizes) - min(sizes) <= 1
