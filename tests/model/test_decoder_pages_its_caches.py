"""Requests that share a step and a pool do not see each other, and chunks meet at every edge.

The engine tests hold this through vLLM's paging; here every chunk edge of a short prompt is tried,
odd ones above all: an edge inside a pair of tokens must find the first one in the open-group ring.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from vllm_deepinfer.models.deepseek_v41.standalone import Chunk, StandaloneModel
from vllm_deepinfer.ops.numerics import Numerics

pytest.importorskip("vllm_deepinfer._kernels", reason="torch's sums depend on the batch")

RNG = np.random.default_rng(5)
PROMPT = RNG.integers(3, 500, 33).tolist()
OTHERS = [RNG.integers(3, 500, length).tolist() for length in (7, 150)]


@pytest.fixture(scope="module")
def model(tiny_folder):
    return StandaloneModel.load(tiny_folder, Numerics(), max_requests=3)


@pytest.fixture(scope="module")
def expected(model):
    model.reset()
    return model.compute([Chunk(0, PROMPT)])


@pytest.mark.parametrize("edge", range(1, 33, 4))
def test_every_chunk_edge_gives_the_same_bits(model, expected, edge):
    model.reset()
    first = model.compute([Chunk(0, PROMPT[:edge])])
    second = model.compute([Chunk(0, PROMPT[edge:])])
    assert torch.equal(torch.cat([first, second]), expected)


def test_requests_in_one_step_do_not_mix(model, expected):
    model.reset()
    chunks = [Chunk(2, OTHERS[1]), Chunk(0, PROMPT), Chunk(1, OTHERS[0])]
    together = model.compute(chunks)
    start = len(OTHERS[1])
    assert torch.equal(together[start : start + len(PROMPT)], expected)


@pytest.mark.parametrize("quantised", [True, False])
def test_tokens_one_by_one_give_the_bits_of_one_step(tiny_folder, quantised):
    """Beside requests that come and go; past the window and the most rows that are selected."""
    model = StandaloneModel.load(tiny_folder, Numerics(quantised=quantised), max_requests=3)
    long = OTHERS[1] + PROMPT
    together = model.compute([Chunk(0, long)])
    model.reset()
    model.compute([Chunk(0, long[:120]), Chunk(1, PROMPT)])
    for position in range(120, len(long)):
        chunks = [Chunk(0, long[position : position + 1])]
        if position % 3 == 0:
            chunks.insert(0, Chunk(2, PROMPT[:3]))
        assert torch.equal(model.compute(chunks)[-1], together[position]), position


def test_tokens_beyond_the_room_are_refused_by_number(model):
    model.reset()
    with pytest.raises(ValueError, match="request 0 exceeds max_tokens 512"):
        model.compute([Chunk(0, [5] * 513)])
