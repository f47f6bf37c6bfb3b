"""Tokens sent to their experts' ranks and back sum up to what one rank with all experts computes.

If this fails, expert parallelism over MC2 gives other texts than a single device. The operators are
played by threads (mc2_ranks); the real ones are checked by ``check`` before their first use.
"""

from __future__ import annotations

import inspect
import json
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module

import pytest
import torch
from npu_ops.mc2_ranks import Ranks, sends_to_the_next_token
from npu_schema.evidence import RECORD

from vllm_deepinfer.ops.npu import VendorMismatchError

CPU = torch.device("cpu")


def groups(mc2, ranks: int, capacity: int = 4, experts: int = 8) -> list:
    return [mc2.ExpertGroup("experts", ranks, rank, experts, capacity) for rank in range(ranks)]


def on_every_rank(compute, groups: list) -> list:
    with ThreadPoolExecutor(len(groups)) as pool:
        return list(pool.map(compute, groups))


@pytest.fixture
def mc2(torch_npu):
    return import_module("vllm_deepinfer.ops.npu.calls.mc2")


def play(torch_npu, ranks: Ranks) -> None:
    for name in ("npu_moe_distribute_dispatch_v2", "npu_moe_distribute_combine_v2"):
        setattr(torch_npu, name, getattr(ranks, name))


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_every_rank_gets_its_own_sums(ranks, mc2, torch_npu):
    play(torch_npu, Ranks(ranks))
    on_every_rank(lambda group: mc2.check(group, CPU), groups(mc2, ranks))


def test_sums_of_other_tokens_are_refused(mc2, torch_npu):
    ranks = Ranks(2)
    play(torch_npu, ranks)
    torch_npu.npu_moe_distribute_combine_v2 = sends_to_the_next_token(ranks)
    with pytest.raises(VendorMismatchError, match="MC2 over 2 ranks differs .* on rank 0"):
        on_every_rank(lambda group: mc2.check(group, CPU), groups(mc2, 2))


@pytest.mark.parametrize("tokens", [0, 5])
def test_more_tokens_than_the_group_takes_are_refused(tokens, mc2):
    (group,) = groups(mc2, 1)
    nothing = torch.zeros(tokens, 32)
    with pytest.raises(ValueError, match=f"{tokens} tokens for MC2; allowed: 1 to 4"):
        mc2.routed_experts(nothing, nothing, nothing, nothing, None, 10.0, group)


def test_experts_that_ranks_cannot_share_alike_are_refused(mc2):
    with pytest.raises(ValueError, match="8 experts on 3 ranks"):
        groups(mc2, 3)


@pytest.mark.parametrize(
    "operator", ["npu_moe_distribute_dispatch_v2", "npu_moe_distribute_combine_v2"]
)
def test_the_threads_take_what_the_operator_takes(operator):
    schema = torch._C.parse_schema(json.loads(RECORD.read_text())["schemas"][operator][0])
    ours = list(inspect.signature(getattr(Ranks, operator)).parameters.values())[1:]
    assert [parameter.name for parameter in ours] == [a.name for a in schema.arguments]
    for parameter, argument in zip(ours, schema.arguments, strict=True):
        assert (parameter.kind is inspect.Parameter.KEYWORD_ONLY) == argument.kwarg_only
