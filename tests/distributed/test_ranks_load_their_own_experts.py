"""A rank keeps its own experts and its own rows of the engram tables only, and checks the others'
all the same.

Claim: shares add up to the whole, and of a table's file no more than the share is read. If this
breaks, expert parallelism saves no memory, computes with another expert's weights or another
token's row, or serves a damaged checkpoint as long as the damage is on another rank.
"""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

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

    def held(self, count: int) -> range:
        return contiguous_share(count, self.rank, self.num_ranks)


@pytest.fixture(scope="module")
def config(tiny_folder):
    return V41Config.from_dict(json.loads((tiny_folder / "config.json").read_text()))


def load(folder, config, part, exchange, change=lambda name, tensor: tensor):
    model = PARTS[part](config, Numerics(), exchange)
    stream = ((name, change(name, tensor)) for name, tensor in iterate_tensors(folder))
    load_weights(model, stream, config, part, exchange.held)
    return dict(model.named_parameters())


def is_spread(name):
    return ".experts." in name or ".engram.embed." in name


def num_bytes(parameters):
    return sum(p.numel() * p.element_size() for n, p in parameters.items() if is_spread(n))


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
        joined = torch.cat(parts) if is_spread(name) else parts[0]
        assert torch.equal(joined, parameter.view(torch.uint8)), name


@pytest.mark.parametrize(
    ("part", "damaged"),
    [
        ("target", "layers.0.ffn.experts.0.w2.weight"),
        ("draft", "mtp.0.ffn.experts.0.w2.weight"),
        ("target", "layers.1.engram.embed.scale"),
    ],
)
def test_what_other_ranks_hold_is_checked(tiny_folder, config, part, damaged):
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


TABLE_ROWS = 240_000
READ_AROUND_BYTES = 1 << 22  # the kernel maps more than what is read, huge pages among it


@pytest.mark.parametrize("rank", range(3))
def test_only_a_ranks_rows_are_read(tiny_folder, config, tmp_path, rank):
    """Memory mapped from the table's file: the pages that were touched, and no copy."""
    large = dataclasses.replace(config, engram_num_embeddings=(TABLE_ROWS,))
    exchange = ShareOf(rank, 3)
    model = Decoder(large, Numerics(), exchange)
    path = tmp_path / "table.safetensors"
    weight = torch.randint(0, 256, (TABLE_ROWS, config.engram_head_dim), dtype=torch.uint8)
    save_file({"layers.1.engram.embed.weight": weight.view(torch.float8_e4m3fn)}, path)
    read_bytes = {}

    def stream():
        for name, tensor in iterate_tensors(tiny_folder):
            if name == "layers.1.engram.embed.weight":
                with safe_open(path, framework="pt") as file:
                    table = file.get_tensor(name)
                before = resident_bytes(path)
                yield name, table
                read_bytes[name] = resident_bytes(path) - before
            elif name == "layers.1.engram.embed.scale":
                yield name, tensor.view(torch.uint8).new_zeros(TABLE_ROWS, 4).view(tensor.dtype)
            else:
                yield name, tensor

    load_weights(model, stream(), large, "target", exchange.held)
    held = exchange.held(TABLE_ROWS)
    found = model.layers[1].engram.embed.weight.view(torch.uint8)
    assert torch.equal(found, weight[held.start : held.stop])
    (touched,) = read_bytes.values()
    assert abs(touched - found.numel()) <= READ_AROUND_BYTES < found.numel() / 2


def resident_bytes(path):
    """Bytes of the file that this process has mapped and touched."""
    total, is_file = 0, False
    with open("/proc/self/smaps", encoding="utf-8") as maps:
        for line in maps:
            if "-" in line.split(" ")[0]:  # an address range
                is_file = line.rstrip().endswith(str(path))
            elif is_file and line.startswith("Rss:"):
                total += 1024 * int(line.split()[1])
    return total
