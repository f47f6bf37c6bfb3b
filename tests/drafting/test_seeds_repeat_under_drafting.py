"""A seed means the same tokens whatever happens around the request; no seed means fresh ones.

If one fails, noise depends on how many drafts a step carried, on the batch, or on nothing at all.
"""

from __future__ import annotations

import pytest
from drafting.comparison import (
    Verifications,
    both_engines,
    drafting_engine,
    generate,
    plain_engine,
    random_prompt,
    sampling,
    seen,
    tokens,
)
from in_process import scheduler

PROMPT = random_prompt(60, 7)
SEEDED = (PROMPT, sampling(12, temperature=0.6, seed=99))
STRANGERS = [
    (random_prompt(61 + i, 3 + 4 * i), sampling(9, temperature=0.5 * i, seed=None))
    for i in range(4)
]
UNSEEDED = [(PROMPT[:3], sampling(8, temperature=1.0))] * 2


@pytest.fixture(scope="module")
def engines(tiny_folder):
    with both_engines(tiny_folder) as engines:
        yield engines


@pytest.fixture(scope="module")
def expected(engines):
    """The seeded request alone, without drafting."""
    return seen(generate(engines[0], [SEEDED])[0])


def test_alone(engines, expected):
    with Verifications(engines[1]) as verifications:
        assert seen(generate(engines[1], [SEEDED])[0]) == expected
    assert sum(verifications.accepted.values()) > 0


def test_among_strangers(engines, expected):
    for llm in engines:
        found = generate(llm, [*STRANGERS[:2], SEEDED, *STRANGERS[2:]])
        assert seen(found[2]) == expected


def test_in_steps_without_drafts_for_it(engines, expected, monkeypatch):
    """Every other step verifies none of its drafts, while a stranger's are verified."""
    target, steps, numbers = scheduler(engines[1]), [], []
    original = target.schedule

    def schedule(*args, **kwargs):
        for request in target.running:
            if request.prompt_token_ids == PROMPT and len(steps) % 2:
                request.spec_token_ids = []
        output = original(*args, **kwargs)
        steps.append(output)
        for request_id in output.num_scheduled_tokens:
            if request_id in target.requests:
                drafts = output.scheduled_spec_decode_tokens.get(request_id, ())
                is_ours = target.requests[request_id].prompt_token_ids == PROMPT
                numbers.append((is_ours, len(drafts)))
        return output

    monkeypatch.setattr(target, "schedule", schedule)
    assert seen(generate(engines[1], [SEEDED, *STRANGERS[1:3]])[0]) == expected
    # Its prefill and its steps of one token; and steps with drafts.
    assert numbers.count((True, 0)) > 2
    assert any(is_ours and count for is_ours, count in numbers)


def test_unseeded_requests_differ(engines):
    for llm in engines:
        first, second = generate(llm, UNSEEDED)
        assert tokens(first) != tokens(second)


def test_one_seed_gives_one_answer_and_another_seed_another(engines):
    same = [SEEDED, SEEDED, (PROMPT, sampling(12, temperature=0.6, seed=100))]
    first, second, other = generate(engines[1], same)
    assert seen(first) == seen(second)
    assert tokens(first) != tokens(other)


def test_the_engine_seed_repeats_a_whole_run(tiny_folder, engines):
    def whole_run(make, seed):
        with make(tiny_folder, seed=seed) as llm:
            return [seen(output) for output in generate(llm, UNSEEDED)]

    first = whole_run(drafting_engine, 5)
    assert whole_run(plain_engine, 5) == first, "drafting draws no seed of its own"
    assert whole_run(drafting_engine, 6) != first
