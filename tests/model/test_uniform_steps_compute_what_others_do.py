"""A step of shapes the host knows computes what the general step does, and writes nothing more.

Claim: for decode steps of 1, 2 and 6 tokens a request, on contexts below and above what the indexer
selects, with padding requests whose positions and block tables are left over from others, hidden
states and every cache row but those of the null block are the same bits; no operation of torch
reads a number from a tensor. If this breaks, graphs replay another model than prompts compute.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from vllm_deepinfer.models.deepseek_v41.kv_cache import is_uniform
from vllm_deepinfer.models.deepseek_v41.standalone import Chunk, StandaloneModel
from vllm_deepinfer.models.deepseek_v41.step import Paging
from vllm_deepinfer.models.deepseek_v41.uniform_step import UniformStep
from vllm_deepinfer.ops.numerics import Numerics

CONTEXTS = (1, 40, 131, 300)
MOST_TOKENS = 512
# A recorded step: no context will ever be longer. An eager one: a bound of today's contexts.
BOUNDS = (MOST_TOKENS, 330)


class NoLooks(TorchDispatchMode):
    """Fails on operations whose result or whose shape the host reads."""

    LOOKS = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "equal")

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.name().removeprefix("aten::")
        assert not name.startswith(self.LOOKS), f"{name} makes the host wait"
        return function(*args, **(kwargs or {}))


@pytest.fixture(scope="module")
def models(tiny_folder):
    numerics = Numerics(torch.bfloat16, True)
    return [StandaloneModel.load(tiny_folder, numerics, 5, MOST_TOKENS) for _ in range(2)]


def with_contexts(model):
    model.reset()
    tokens = np.random.default_rng(3)
    for request, length in enumerate(CONTEXTS):
        model.compute([Chunk(request, tokens.integers(3, 500, length).tolist())])


def uniform(step, num_tokens, most_context_tokens, padding):
    """The same step without numbers on the host, and with requests that pad it."""
    more = padding * num_tokens

    def paging(page):
        # Left over: the tables of live requests, which padding must not write to.
        table = torch.cat([page.block_table, page.block_table[:padding]])
        if page.slots is None:
            return Paging(table, None, page.block_tokens)
        slots = torch.cat([page.slots, torch.full((more,), -1)])
        return Paging(table, slots, page.block_tokens)

    tables = {}
    for page in step.paging.values():
        # Caches of one group share a table, by address.
        tables.setdefault((id(page.block_table), id(page.slots)), paging(page))
    return UniformStep(
        tokens_per_request=num_tokens,
        most_context_tokens=most_context_tokens,
        positions=torch.cat([step.positions, step.positions[:more]]),
        ngram_token_ids=torch.cat([step.ngram_token_ids, step.ngram_token_ids[:more]]),
        paging={
            name: tables[id(page.block_table), id(page.slots)] for name, page in step.paging.items()
        },
    )


def rows_of(model):
    return {cache.name: cache.storage[1:] for cache in model.decoder.all_caches()}


@pytest.mark.parametrize("num_tokens", [1, 2, 6])
@pytest.mark.parametrize("padding", [0, 2])
@pytest.mark.parametrize("bound", BOUNDS)
@torch.no_grad()
def test_hidden_states_and_caches_are_the_same_bits(models, num_tokens, padding, bound):
    general, special = models
    for model in models:
        with_contexts(model)
    tokens = np.random.default_rng(num_tokens)
    for _ in range(3):
        chunks = [
            Chunk(request, tokens.integers(3, 500, num_tokens).tolist())
            for request in range(len(CONTEXTS))
        ]
        expected = general.compute(chunks)
        step = uniform(special.step(chunks), num_tokens, bound, padding)
        ids = torch.tensor([token for chunk in chunks for token in chunk.token_ids])
        # Other tokens than the requests have whose tables the padding took over.
        ids = torch.cat([ids, ids[: padding * num_tokens].flip(0) + 1])
        with NoLooks():
            found = special.decoder(ids, step)
        assert torch.equal(found[: len(expected)], expected)
        wanted = rows_of(general)
        for name, rows in rows_of(special).items():
            assert torch.equal(rows, wanted[name]), name


@pytest.mark.parametrize("bound", BOUNDS)
def test_blocks_of_drafts_see_themselves_and_the_window_before(models, bound):
    model = models[0]
    with_contexts(model)
    step = model.step([Chunk(request, [5] * 5) for request in range(len(CONTEXTS))])
    special = uniform(step, 5, bound, 0)
    step.is_draft_block = special.is_draft_block = True
    cache, window = model.decoder.caches[0].window, model.config.sliding_window
    expected, found = step.window_rows(cache, window), special.window_rows(cache, window)
    width = expected.shape[1]
    assert torch.equal(found[:, -width:], expected)
    assert (found[:, :-width] == -1).all()


def test_a_step_is_uniform_only_if_all_its_requests_are_alike():
    def starts(*lengths):
        return torch.tensor([0, *lengths]).cumsum(0)

    assert is_uniform(starts(1, 1, 1), 1)
    assert is_uniform(starts(6, 6), 6)
    assert is_uniform(starts(2), 6)
    assert not is_uniform(starts(2, 1), 6)
    assert not is_uniform(starts(1, 2), 6)
    assert not is_uniform(starts(7, 7), 6)
    assert not is_uniform(starts(1, 1), 0)


def test_more_tokens_than_the_ring_keeps_are_refused(models):
    model = models[0]
    with_contexts(model)
    chunks = [Chunk(0, list(range(3, 12)))]
    step = uniform(model.step(chunks), 9, MOST_TOKENS, 0)
    with pytest.raises(ValueError, match="9 tokens of a request do not fit in the 8 rows"):
        model.decoder(torch.arange(3, 12), step)
