"""With drafting on, every request's tokens and log-probabilities are those without, bit for bit.

Through the real engine in the batch-invariant mode, where equality is exact: greedy and sampled
requests of all kinds in one batch, chunked prompts, prefix hits, preemption, and every number of
drafts verified. Each comparison asserts that drafts were accepted. If one fails, a draft has
reached the text without being the token the target would have drawn, or a rejected one has left
something behind.
"""

from __future__ import annotations

import pytest
from drafting.comparison import (
    NUM_DRAFTS,
    Verifications,
    both_engines,
    compare,
    drafting_engine,
    generate,
    random_prompt,
    sampling,
    seen,
)
from in_process import counter, forget_prefixes, scheduler, set_step_tokens

KINDS = [
    {},
    {"temperature": 0.3, "seed": 1},
    {"temperature": 1.0, "seed": 2},
    {"temperature": 2.0, "seed": 3},
    {"temperature": 1.0, "seed": 4, "top_k": 3},
    {"temperature": 1.0, "seed": 5, "top_p": 0.4},
    {"temperature": 2.0, "seed": 6, "top_k": 40, "top_p": 0.7},
    {"temperature": 0.3, "seed": 7, "top_p": 0.95},
]
PROMPT_LENGTHS = [1, 2, 3, 5, 9, 14, 17, 33]
MIXED = [
    (random_prompt(i, PROMPT_LENGTHS[i * 5 % 8]), sampling(4 + i % 7, **KINDS[i % 8]))
    for i in range(24)
]
FEW = slice(None, None, 3)  # one of each kind
LONG = [
    (random_prompt(100, 140), sampling(10)),
    (random_prompt(101, 30), sampling(10, temperature=0.3, seed=8)),
]

TIGHT = [
    (random_prompt(200 + i, length), sampling(10, temperature=0.3 * (i % 2), seed=i))
    for i, length in enumerate((25, 27, 26, 28, 24, 25))
]


@pytest.fixture(scope="module")
def engines(tiny_folder):
    with both_engines(tiny_folder) as engines:
        yield engines


@pytest.fixture(scope="module")
def mixed_answers(engines):
    return [seen(output) for output in generate(engines[0], MIXED)]


@pytest.fixture(scope="module")
def long_answers(engines):
    return [seen(output) for output in generate(engines[0], LONG)]


@pytest.fixture(scope="module", autouse=True)
def tight_answers(engines):
    return [seen(output) for output in generate(engines[0], TIGHT)]


@pytest.fixture(autouse=True)
def clean(engines):
    yield
    for llm in engines:
        forget_prefixes(llm)
    set_step_tokens(engines[1], 512)


def check(llm, requests, wanted) -> Verifications:
    with Verifications(llm) as verifications:
        found = [seen(output) for output in generate(llm, requests)]
    assert found == wanted
    assert sum(verifications.accepted.values()) > 0
    return verifications


def test_mixed_batch(engines, mixed_answers):
    verifications = check(engines[1], MIXED, mixed_answers)
    accepted = {count for _, count in verifications.blocks}
    assert accepted == set(range(NUM_DRAFTS + 1)), "every run length, the full block too"


def test_chunked_prefill_beside_verification(engines, mixed_answers):
    set_step_tokens(engines[1], 20)
    check(engines[1], MIXED[FEW], mixed_answers[FEW])


@pytest.mark.parametrize("chunk_tokens", [6, 50])
def test_chunked_prompts(engines, long_answers, chunk_tokens):
    set_step_tokens(engines[1], chunk_tokens)
    check(engines[1], LONG, long_answers)


def test_prefix_hits(engines):
    plain, drafting = engines
    requests = [(random_prompt(102, 290), sampling(10))]
    [cold] = compare(plain, drafting, requests)
    before = counter(drafting, "vllm:prefix_cache_hits")
    check(drafting, requests, [seen(cold)])
    assert counter(drafting, "vllm:prefix_cache_hits") > before


def test_forced_preemption(engines, long_answers, monkeypatch):
    target, steps = scheduler(engines[1]), []
    original = target.schedule

    def schedule(*args, **kwargs):
        steps.append(None)
        if len(steps) == 4:
            target._preempt_request(target.running.pop(), 0.0)
        return original(*args, **kwargs)

    monkeypatch.setattr(target, "schedule", schedule)
    before = counter(engines[1], "vllm:num_preemptions")
    check(engines[1], LONG, long_answers)
    assert counter(engines[1], "vllm:num_preemptions") == before + 1


def test_fewer_drafts_verified_than_drafted(engines, mixed_answers, monkeypatch):
    """The scheduler offers 0 to 5 drafts, another number per request and step."""
    target, turns = scheduler(engines[1]), iter(range(10**6))
    original = target.schedule

    def schedule(*args, **kwargs):
        for request in target.running:
            if request.spec_token_ids:
                request.spec_token_ids = request.spec_token_ids[: next(turns) * 5 % 7]
        return original(*args, **kwargs)

    monkeypatch.setattr(target, "schedule", schedule)
    verifications = check(engines[1], MIXED[FEW], mixed_answers[FEW])
    offered = {count for count, _ in verifications.blocks}
    assert offered == set(range(1, NUM_DRAFTS + 1))


# An engine that ends takes vLLM's process groups with it, so tests with one of their own come last;
# they compare with answers computed before.


def test_preemption_for_want_of_blocks(tiny_folder, tight_answers):
    tight = {"max_model_len": 128, "num_gpu_blocks_override": 18}
    with drafting_engine(tiny_folder, **tight) as llm:
        check(llm, TIGHT, tight_answers)
        assert counter(llm, "vllm:num_preemptions") > 0


@pytest.mark.parametrize("num_drafts", [1, 3])
def test_shorter_blocks(tiny_folder, mixed_answers, num_drafts):
    with drafting_engine(tiny_folder, num_drafts) as llm:
        verifications = check(llm, MIXED[FEW], mixed_answers[FEW])
    assert (num_drafts, num_drafts) in verifications.blocks, "a whole block accepted"


def test_synchronous_scheduling(tiny_folder, mixed_answers):
    with drafting_engine(tiny_folder, async_scheduling=False) as llm:
        check(llm, MIXED[FEW], mixed_answers[FEW])
