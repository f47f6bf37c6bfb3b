"""When every draft is wrong, tokens and the cache rows a request can see are those of plain
decoding, byte for byte.

The drafter's tokens are replaced before they are verified. If a test fails, a rejected draft's
rows, ring entries or n-grams stay behind where later tokens read them.
"""

from __future__ import annotations

import pytest
import torch
from drafting.comparison import (
    NUM_DRAFTS,
    Verifications,
    both_engines,
    generate,
    random_prompt,
    sampling,
    seen,
)
from in_process import forget_prefixes, scheduler

from vllm_deepinfer.models.deepseek_v41.cache import CacheKind

REQUESTS = [
    (random_prompt(40, 21), sampling(16)),
    (random_prompt(41, 10), sampling(16, temperature=0.5, seed=1)),
    (random_prompt(42, 118), sampling(15)),
]
WRONG_TOKEN = 2  # never the target's choice here; asserted through the acceptance


@pytest.fixture(scope="module")
def engines(tiny_folder):
    with both_engines(tiny_folder) as engines:
        yield engines


def runner(llm):
    executor = llm.llm_engine.engine_core.engine_core.model_executor
    return executor.driver_worker.worker.model_runner


@pytest.fixture
def wrong_drafts(engines, monkeypatch):
    speculator = runner(engines[1]).speculator
    original = speculator.propose

    def propose(*args, **kwargs):
        return torch.full_like(original(*args, **kwargs), WRONG_TOKEN)

    monkeypatch.setattr(speculator, "propose", propose)


def visible_rows(cache, num_computed_tokens: int, sliding_window: int, tokens_per_group: int):
    """Logical rows that the token at position ``num_computed_tokens`` would read."""
    if cache.kind is CacheKind.WINDOW:
        return range(max(0, num_computed_tokens - sliding_window + 1), num_computed_tokens)
    if cache.kind is CacheKind.OPEN_GROUP:
        open_tokens = num_computed_tokens % tokens_per_group
        first = num_computed_tokens - open_tokens
        return [position % cache.rows_per_block for position in range(first, num_computed_tokens)]
    return range(num_computed_tokens // cache.tokens_per_row)


def cache_bytes(llm, request) -> dict[str, torch.Tensor]:
    """Rows by cache name that the request could read next, the newest token not computed."""
    manager = scheduler(llm).kv_cache_manager
    tables = manager.get_block_ids(request.request_id)
    model = runner(llm).model
    caches = {layer.cache.name: layer.cache for layer in model.cache_layers}
    tokens_per_group = max(cache.tokens_per_row for cache in caches.values())
    found = {}
    for group, table in zip(manager.kv_cache_config.kv_cache_groups, tables, strict=True):
        for name in set(group.layer_names) & set(caches):
            cache = caches[name]
            rows = visible_rows(
                cache, request.num_tokens - 1, model.config.sliding_window, tokens_per_group
            )
            size = cache.rows_per_block
            blocks = [table[row // size] for row in rows]
            assert 0 not in blocks, f"{name}: a visible block was given back"
            offsets = [row % size for row in rows]
            found[name] = cache.storage[blocks, offsets].clone()
    assert set(found) == set(caches)
    return found


def record_caches(llm, monkeypatch) -> dict[tuple[int, ...], dict[str, torch.Tensor]]:
    """By prompt, what each request's caches hold when it ends."""
    target, kept = scheduler(llm), {}
    original = target._free_request

    def free_request(request, *args, **kwargs):
        kept[tuple(request.prompt_token_ids)] = cache_bytes(llm, request)
        return original(request, *args, **kwargs)

    monkeypatch.setattr(target, "_free_request", free_request)
    return kept


def check_tokens_and_caches(engines, monkeypatch) -> Verifications:
    plain, drafting = (record_caches(llm, monkeypatch) for llm in engines)
    wanted = generate(engines[0], REQUESTS)
    with Verifications(engines[1]) as verifications:
        found = generate(engines[1], REQUESTS)
    assert [seen(output) for output in found] == [seen(output) for output in wanted]
    assert plain.keys() == drafting.keys() == {tuple(prompt) for prompt, _ in REQUESTS}
    num_rows = 0
    for prompt, caches in plain.items():
        for name, rows in caches.items():
            assert torch.equal(drafting[prompt][name], rows), (len(prompt), name)
            num_rows += len(rows)
    assert num_rows > 1000
    return verifications


def test_every_draft_rejected(engines, wrong_drafts, monkeypatch):
    verifications = check_tokens_and_caches(engines, monkeypatch)
    assert {accepted for _, accepted in verifications.blocks} == {0}
    assert (NUM_DRAFTS, 0) in verifications.blocks


def test_some_drafts_rejected(engines, monkeypatch):
    for llm in engines:
        forget_prefixes(llm)
    verifications = check_tokens_and_caches(engines, monkeypatch)
    assert {accepted < offered for offered, accepted in verifications.blocks} == {True, False}
