"""Engram tables spread over ranks give every bit of the same tables on one rank.

Claim: for two and three ranks, rows that do not divide, fewer rows than ranks and ranks without
tokens; one exchange serves all layers, and a rank that joins takes part in what the others do, in
the same order. If this breaks, tokens take up other tokens' memories, or ranks hang.
"""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch
from distributed import rank_work
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_deepinfer.models.deepseek_v41.checkpoint_files import iterate_tensors
from vllm_deepinfer.models.deepseek_v41.config import V41Config
from vllm_deepinfer.models.deepseek_v41.decoder import Decoder
from vllm_deepinfer.models.deepseek_v41.expert_exchange import LocalExperts, contiguous_share
from vllm_deepinfer.models.deepseek_v41.prepare import load_engram_constants, set_engram_constants
from vllm_deepinfer.models.deepseek_v41.presets import preset
from vllm_deepinfer.models.deepseek_v41.standalone import Chunk, StandaloneModel
from vllm_deepinfer.models.deepseek_v41.weights import load_weights
from vllm_deepinfer.ops.engram import take_held_rows
from vllm_deepinfer.ops.numerics import Numerics

CONFIG = dataclasses.replace(V41Config.from_dict(preset("tiny")), hidden_size=64)
COLUMNS = CONFIG.engram_columns


@pytest.mark.parametrize(
    ("bucket_rows", "sizes"),
    [([50, 31], [3, 5]), ([17], [4, 0]), ([13, 40, 7], [2, 0, 3]), ([11], [1, 1, 1])],
    ids=str,
)
def test_rows_have_the_same_bits(ranks, bucket_rows, sizes):
    held = ranks.run(len(sizes), rank_work.tables_equal_one, CONFIG, bucket_rows, sizes)
    for layer, rows in enumerate(bucket_rows):
        by_rank = [counts[layer] for counts in held]
        assert sum(by_rank) == rows * COLUMNS and max(by_rank) - min(by_rank) <= 1


@given(st.integers(0, 400_000_000), st.integers(1, 1024))
def test_shares_are_neighbours_of_equal_size(count, num_ranks):
    shares = [contiguous_share(count, rank, num_ranks) for rank in range(num_ranks)]
    assert shares[0].start == 0 and shares[-1].stop == count
    assert all(a.stop == b.start for a, b in zip(shares, shares[1:], strict=False))
    assert {len(share) for share in shares} <= {count // num_ranks, -(-count // num_ranks)}


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 40), st.integers(1, 9), st.integers(0, 5), st.integers(0, 999))
def test_every_row_is_taken_from_one_share_and_is_zero_elsewhere(rows, num_ranks, tokens, seed):
    generator = torch.Generator().manual_seed(seed)
    draw = {"generator": generator, "dtype": torch.uint8}
    # No byte is zero, so that a row that was not taken differs.
    weight = torch.randint(1, 256, (rows, 64), **draw).view(torch.float8_e4m3fn)
    scale = torch.randint(1, 256, (rows, 2), **draw).view(torch.float8_e8m0fnu)
    numbers = torch.randint(0, rows, (tokens, 3), generator=generator)
    taken_by = torch.zeros(tokens, 3, dtype=torch.int64)
    for rank in range(num_ranks):
        held = contiguous_share(rows, rank, num_ranks)
        own = slice(held.start, held.stop)
        taken = take_held_rows(weight[own], scale[own], numbers, held.start)
        for part, found in zip((weight, scale), taken, strict=True):
            here = ((numbers >= held.start) & (numbers < held.stop)).unsqueeze(2)
            wanted = part.view(torch.uint8)[numbers] * here
            assert torch.equal(found.view(wanted.shape), wanted)
        taken_by += here.squeeze(2)
    assert (taken_by == 1).all()


class Recorded(LocalExperts):
    """Two ranks, of which this one holds everything; notes what would go between them."""

    num_ranks = 2

    def __init__(self) -> None:
        self.calls = []

    def gather(self, tensors, rank_rows):
        self._note("gather", tensors, rank_rows)
        return tensors

    def bring_back(self, outputs, rank_rows):
        self._note("bring back", [outputs], rank_rows)
        return outputs

    def _note(self, name, tensors, rank_rows):
        kinds = [(tensor.dtype, tuple(tensor.shape[1:])) for tensor in tensors]
        self.calls.append((name, kinds, rank_rows))


@pytest.fixture(scope="module")
def model(tiny_folder):
    """Its exchange is of two ranks."""
    config = V41Config.from_dict(json.loads((tiny_folder / "config.json").read_text()))
    decoder = Decoder(config, Numerics(), Recorded())
    load_weights(decoder, iterate_tensors(tiny_folder), config, "target")
    set_engram_constants(decoder, load_engram_constants(config, tiny_folder))
    return StandaloneModel(config, decoder, max_requests=1, max_tokens=128)


@torch.no_grad()
def test_a_rank_that_joins_takes_part_in_everything(model, tiny_folder):
    exchange, token_ids = model.decoder.engram_lookup.exchange, [5, 9, 9, 31, 200]
    model.reset()
    step = model.step([Chunk(0, token_ids)])
    step.rank_rows = (len(token_ids), 0)
    hidden = model.decoder(torch.tensor(token_ids), step)
    computed, exchange.calls = exchange.calls, []
    model.decoder.join(step.rank_rows)
    assert exchange.calls == computed
    # N-grams go out and bytes come home once, before any layer's experts.
    row_bytes = model.config.engram_head_dim * 33 // 32
    assert computed[:2] == [
        ("gather", [(torch.int64, (model.config.engram_max_ngram_size,))], step.rank_rows),
        ("bring back", [(torch.uint8, (COLUMNS * row_bytes,))], step.rank_rows),
    ]
    assert len(computed) == 2 + 2 * model.config.num_hidden_layers
    alone = StandaloneModel.load(tiny_folder, Numerics(), max_tokens=128)
    rank_work.assert_same(hidden, alone.compute([Chunk(0, token_ids)]))


@torch.no_grad()
def test_one_rank_reads_its_own_table(tiny_folder):
    """No row is copied on its way to the operation that decodes it."""
    model = StandaloneModel.load(tiny_folder, Numerics(), max_tokens=128)
    step = model.step([Chunk(0, [5, 6, 7])])
    for layer, rows in model.decoder.engram_lookup.find(step).items():
        table = model.decoder.layers[layer].engram.embed
        assert rows.weight is table.weight and rows.scale is table.scale
