"""A rank keeps the weights of its own experts only, and checks those of the others all the same.

If this breaks, expert parallelism saves no memory, computes with another expert's weights, or
serves a damaged checkpoint as long as the damage is on another rank.
"""

from __future__ import annotations

import json

import pytest
import torch

from vllm_deepinfer.models.deepseek_v41.checkpoint_files import iterate_tensors
from vllm_deepinfer.models.deepseek_v41.config import V41Config
from vllm_deepinfer.models.deepseek_v41.decoder import Decoder
from vllm_deepinfer.models.deepseek_v41.draft import Draft
from vllm_deepinfer.models.deepseek_v41.expert_exchange import LocalExperts, contiguous_share
from vllm_deepinfer.models.deepseek_v41.weight_problems import WeightsError
from vllm_deepinfer.models.deepseek_v41.weights import load_weights
from vllm_deepinfer.ops.numerics import Numerics

PARTS = {"target": Decoder, "draft": Draft}


class ShareOf(LocalExperts):
    """The share of one rank, without the rank."""

    def __init__(self, rank: int, num_ranks: int) -> None:
        self.rank, self.num_ranks = rank, num_ranks

    def held(self, num_experts: int) -> range:
        return contiguous_share(num_experts, self.rank, self.num_ranks)


@pytest.fixture(scope="module")
def config(tiny_folder):
    return V41Config.from_dict(json.loads((tiny_folder / "config.json").read_text()))


def load(folder, config, part, exchange, change=lambda name, tensor: tensor):
    model = PARTS[part](config, Numerics(), exchange)
    stream = ((name, change(name, tensor)) for name, tensor in iterate_tensors(folder))
    load_weights(model, stream, config, part, exchange.held)
    return dict(model.named_parameters())


def num_bytes(parameters):
    return sum(p.numel() * p.element_size() for n, p in parameters.items() if ".experts." in n)


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("num_ranks", [2, 3, 5])
def test_shares_are_the_whole(tiny_folder, config, part, num_ranks):
    whole = load(tiny_folder, config, part, LocalExperts())
    shares = [
        load(tiny_folder, config, part, ShareOf(rank, num_ranks)) for rank in range(num_ranks)
    ]
    assert sum(num_bytes(share) for share in shares) == num_bytes(whole)
    for name, parameter in whole.items():
        parts = [share[name].view(torch.uint8) for share in shares]
        joined = torch.cat(parts) if ".experts." in name else parts[0]
        assert torch.equal(joined, parameter.view(torch.uint8)), name


@pytest.mark.parametrize("part", PARTS)
def test_experts_of_other_ranks_are_checked(tiny_folder, config, part):
    prefix = "layers.0" if part == "target" else "mtp.0"
    damaged = f"{prefix}.ffn.experts.0.w2.weight"

    def cut(name, tensor):
        return tensor[:-1] if name == damaged else tensor

    with pytest.raises(WeightsError, match=damaged.replace(".", r"\.")):
        load(tiny_folder, config, part, ShareOf(1, 2), cut)


def test_absent_experts_of_other_ranks_are_missed(tiny_folder, config):
    exchange, absent = ShareOf(1, 2), "layers.2.ffn.experts.1.w1.scale"
    model = Decoder(config, Numerics(), exchange)
    stream = ((n, t) for n, t in iterate_tensors(tiny_folder) if n != absent)
    with pytest.raises(WeightsError, match="1 missing"):
        load_weights(model, stream, config, "target", exchange.held)
