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

RNG = np.random.default_rng(5)
PROMPT = RNG.integers(3, 500, 33).tolist()
OTHERS = [RNG.integers(3, 500, length).tolist() for length in (7, 150)]


@pytest.fixture(scope="module")
def model(tiny_folder):
    return StandaloneModel.load(tiny_folder, Numerics(), max_requests=3)


@pytest.fixture(scope="module")
def expected(model):
    model.reset()
    return model.compute([Chunk(0, PROMPT)], alone=True)


@pytest.mark.parametrize("edge", range(1, 33, 4))
def test_every_chunk_edge_gives_the_same_bits(model, expected, edge):
    model.reset()
    first = model.compute([Chunk(0, PROMPT[:edge])], alone=True)
    second = model.compute([Chunk(0, PROMPT[edge:])], alone=True)
    assert torch.equal(torch.cat([first, second]), expected)


def test_requests_in_one_step_do_not_mix(model, expected):
    model.reset()
    chunks = [Chunk(2, OTHERS[1]), Chunk(0, PROMPT), Chunk(1, OTHERS[0])]
    together = model.compute(chunks, alone=True)
    start = len(OTHERS[1])
    assert torch.equal(together[start : start + len(PROMPT)], expected)


def test_batched_computation_stays_close_to_single_tokens(tiny_folder):
    """Unquantised, so that one unit in the last place stays one: the fast path is the same sum."""
    model = StandaloneModel.load(tiny_folder, Numerics(torch.float32, False), max_requests=3)
    alone = model.compute([Chunk(0, PROMPT)], alone=True)
    model.reset()
    model.compute([Chunk(0, PROMPT[:11]), Chunk(1, OTHERS[0][:3])])
    rest = model.compute([Chunk(1, OTHERS[0][3:]), Chunk(0, PROMPT[11:]), Chunk(2, OTHERS[1])])
    found = rest[len(OTHERS[0]) - 3 :][: len(PROMPT) - 11]
    assert (found - alone[11:]).norm() / alone[11:].norm() < 1e-5


def test_tokens_beyond_the_room_are_refused_by_number(model):
    model.reset()
    with pytest.raises(ValueError, match="request 0 exceeds max_tokens 512"):
        model.compute([Chunk(0, [5] * 513)])
