"""Whatever the engine does to a request, the text stays the successor rule's.

The stand-ins check every KV row they depend on, so these tests also fail when a row of either
model's cache, or a token of the runner's history, is lost, misplaced or another request's. If one
breaks, drafting, scheduling or paging corrupts text. Takes about 60 s.
"""

from __future__ import annotations

import numpy as np
import pytest
from drafting.stand_in_engine import (
    behave,
    drafter,
    expected,
    generate,
    num_faults,
    prompt,
    runner,
    sampling,
)
from in_process import counter, scheduler, set_step_tokens
from vllm import TokensPrompt

from vllm_deepinfer.testing.stand_in import POISON, logits_table

MODES = [*((count, True) for count in range(6)), (5, False)]
ACCEPTANCES = [0.0, 0.5, 1.0]
MIXED = [prompt(length, salt) for salt, length in enumerate([1, 2, 31, 32, 33, 127, 128, 129] * 8)]
MIXED_TOKENS = [40 + 3 * index for index in range(64)]


def free_blocks(llm):
    return scheduler(llm).kv_cache_manager.block_pool.get_num_free_blocks()


@pytest.fixture(params=MODES, ids=lambda mode: f"{mode[0]}-{'async' if mode[1] else 'sync'}")
def mode(request, stand_ins):
    llm = stand_ins(request.param[0], async_scheduling=request.param[1])
    yield llm, request.param[0]
    set_step_tokens(llm, 512)


@pytest.fixture
def llm(stand_ins):
    llm = stand_ins(5, async_scheduling=True)
    yield llm
    set_step_tokens(llm, 512)


@pytest.mark.parametrize("acceptance", ACCEPTANCES)
def test_every_draft_length(mode, acceptance):
    llm, _ = mode
    behave(llm, acceptance=(acceptance,) * 5)
    faults, prompts = num_faults(llm), [prompt(40 + salt, salt) for salt in range(4)]
    assert generate(llm, prompts, sampling(150)) == expected(prompts, 150)
    assert num_faults(llm) == faults
    assert free_blocks(llm) == scheduler(llm).kv_cache_config.num_blocks - 1


def test_sixty_four_mixed_requests_in_small_steps(mode):
    """Chunks of prompts and blocks of drafts share steps too small for all requests."""
    llm, _ = mode
    behave(llm, acceptance=(0.7, 0.6, 0.5, 0.4, 0.3))
    set_step_tokens(llm, 150)
    params = [sampling(count) for count in MIXED_TOKENS]
    faults = num_faults(llm)
    texts = [expected([tokens], n)[0] for tokens, n in zip(MIXED, MIXED_TOKENS, strict=True)]
    assert generate(llm, MIXED, params) == texts
    assert num_faults(llm) == faults


@pytest.mark.parametrize("chunk", [7, 33, 64])
def test_small_chunks(llm, chunk):
    behave(llm)
    set_step_tokens(llm, chunk)
    prompts, faults = [prompt(300, chunk)], num_faults(llm)
    assert generate(llm, prompts, sampling(60)) == expected(prompts, 60)
    assert num_faults(llm) == faults


def accepted_shares(llm, prompts, num_tokens):
    """Share of offered drafts that survived, per position, while the prompts are served."""
    ledger = scheduler(llm).parts.ledger

    def read():
        return np.array([ledger.num_offered, ledger.num_accepted])

    before = read()
    assert generate(llm, prompts, sampling(num_tokens)) == expected(prompts, num_tokens)
    offered, accepted = read() - before
    assert offered.min() > 0
    return (accepted / offered).tolist()


def test_a_drafter_that_is_always_right_is_always_accepted_cold_and_after_a_prefix_hit(llm):
    behave(llm)
    prompts, faults = [prompt(300, 1), prompt(290, 2)], num_faults(llm)
    assert accepted_shares(llm, prompts, 100) == [1.0] * 5
    assert accepted_shares(llm, prompts, 100) == [1.0] * 5
    # Every whole block of its cache before the last token.
    assert cached_tokens(llm, prompts[0]) == 299 // 32 * 32
    assert num_faults(llm) == faults


def cached_tokens(llm, tokens):
    """How much of a prompt is found in the prefix cache."""
    output = llm.generate(TokensPrompt(prompt_token_ids=tokens), sampling(1), use_tqdm=False)
    return output[0].num_cached_tokens


def test_a_prefix_hit_on_generated_text(stand_ins):
    """Blocks written by verified drafts, not by a prefill, are reused."""
    llm = stand_ins(5, prefix_cache_retention_interval=32)
    behave(llm, acceptance=(0.6,) * 5)
    start = [prompt(50, 3)]
    text = generate(llm, start, sampling(250))[0]
    longer = start[0] + text[:230]
    assert cached_tokens(llm, longer) >= 192
    assert generate(llm, [longer], sampling(80)) == expected([longer], 80)
    assert num_faults(llm) == 0


@pytest.mark.parametrize("async_scheduling", [True, False])
def test_preemption_for_want_of_blocks(stand_ins, async_scheduling):
    llm = stand_ins(
        5, async_scheduling=async_scheduling, max_model_len=256, num_gpu_blocks_override=24
    )
    behave(llm, acceptance=(0.7,) * 5)
    before = counter(llm, "vllm:num_preemptions")
    prompts = [prompt(60 + salt, salt) for salt in range(12)]
    assert generate(llm, prompts, sampling(120)) == expected(prompts, 120)
    assert counter(llm, "vllm:num_preemptions") - before > 3
    assert num_faults(llm) == 0
    assert free_blocks(llm) == 23


@pytest.mark.parametrize("async_scheduling", [True, False])
def test_aborts_free_everything_and_disturb_nobody(stand_ins, async_scheduling):
    llm = stand_ins(5, async_scheduling=async_scheduling)
    behave(llm, acceptance=(0.5,) * 5)
    engine, faults = llm.llm_engine, num_faults(llm)
    prompts = {str(salt): prompt(30 + 9 * salt, salt) for salt in range(16)}
    for name, tokens in prompts.items():
        engine.add_request(name, TokensPrompt(prompt_token_ids=tokens), sampling(90))
    finished, steps = {}, 0
    while engine.has_unfinished_requests():
        for output in engine.step():
            if output.finished:
                finished[output.request_id] = list(output.outputs[0].token_ids)
        steps += 1
        if steps in (1, 2, 3, 5, 8, 13):
            engine.abort_request([str(steps), str((steps + 1) % 16)])
    stayed = set(prompts) - {"1", "2", "3", "4", "5", "6", "8", "9", "13", "14"}
    assert set(finished) == stayed
    assert all(finished[name] == expected([prompts[name]], 90)[0] for name in stayed)
    generate(llm, [prompt(5, 5)], sampling(2))  # lets the engine tidy up after the last abort
    assert free_blocks(llm) == scheduler(llm).kv_cache_config.num_blocks - 1
    assert num_faults(llm) == faults
    assert scheduler(llm).parts.ledger.table.is_open.sum() <= 1


def test_sampled_text_follows_the_tables_law(llm):
    """How often the likeliest token is drawn, over 12,000 draws, is within 4.5 deviations."""
    behave(llm, acceptance=(0.5,) * 5)
    prompts = [prompt(10, salt) for salt in range(60)]
    params = [sampling(200, temperature=1.0, seed=salt) for salt in range(60)]
    texts = generate(llm, prompts, params)
    table = logits_table(0).astype(np.float64)
    chance = np.exp(table).max(1) / np.exp(table).sum(1)
    before = np.array([[p[-1], *text[:-1]] for p, text in zip(prompts, texts, strict=True)])
    hits = (table.argmax(1)[before] == np.array(texts)).sum()
    deviation = np.sqrt((chance * (1 - chance))[before].sum())
    assert abs(hits - chance[before].sum()) < 4.5 * deviation


@pytest.mark.parametrize("which", ["target", "drafter"])
def test_a_corrupted_row_shows(stand_ins, which):
    """The tests above can fail: rows changed in the middle of a request are noticed."""
    llm = stand_ins(5, async_scheduling=True)
    behave(llm)
    model = runner(llm).model if which == "target" else drafter(llm)
    engine, tokens, faults = llm.llm_engine, prompt(70, 0), model.num_faults
    engine.add_request("0", TokensPrompt(prompt_token_ids=tokens), sampling(60))
    for steps in range(1000):
        outputs = engine.step()
        if steps == 4:
            storage = model.journal.cache.storage
            storage.copy_(storage ^ 1)
        if not engine.has_unfinished_requests():
            break
    text = list(outputs[-1].outputs[0].token_ids)
    assert model.num_faults > faults
    if which == "target":
        assert text[:10] == expected([tokens], 10)[0] and text[-1] == POISON
    else:
        assert text == expected([tokens], 60)[0]
