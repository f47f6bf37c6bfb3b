"""Sampling parameters do what the API promises: seeds, choices, stop strings, log-probabilities."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from serving_support import HELLO, MODEL, NO_THINKING

PROMPT = "The weather in Paris"


def complete(client, **options):
    extra = {"ignore_eos": True, **options.pop("extra_body", {})}
    options = {"model": MODEL, "prompt": PROMPT, "max_tokens": 24, **options}
    return client.completions.create(extra_body=extra, **options)


def test_a_seed_repeats_its_answer_and_another_differs(client):
    texts = [complete(client, temperature=1.0, seed=seed).choices[0].text for seed in (3, 3, 4)]
    assert texts[0] == texts[1] != texts[2]


def test_without_a_seed_answers_differ(client):
    assert complete(client).choices[0].text != complete(client).choices[0].text


def test_choices_are_numbered_and_differ(client):
    answer = complete(client, n=3, temperature=1.0, seed=5)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert len({choice.text for choice in answer.choices}) == 3
    assert answer.usage.completion_tokens == 3 * 24


def test_streamed_choices_are_the_whole_ones(client):
    whole = complete(client, n=2, temperature=1.0, seed=6)
    texts = ["", ""]
    for chunk in complete(client, n=2, temperature=1.0, seed=6, stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == [choice.text for choice in whole.choices]


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_ends_the_answer_before_it(client, stream):
    text = complete(client, temperature=0.0).choices[0].text
    stop = text[len(text) // 2 : len(text) // 2 + 3]
    expected = text[: text.index(stop)]
    answer = complete(client, temperature=0.0, stop=[stop], stream=stream)
    if stream:
        chunks = list(answer)
        assert "".join(chunk.choices[0].text for chunk in chunks) == expected
        last = chunks[-1].choices[0]
    else:
        last = answer.choices[0]
        assert last.text == expected
    assert last.finish_reason == "stop"
    assert last.stop_reason == stop


def test_a_stop_token_ends_the_answer(client):
    options = {"temperature": 0.0, "extra_body": {"return_token_ids": True}}
    ids = complete(client, **options).choices[0].token_ids
    stop = ids[len(ids) // 2]
    options["extra_body"] = {"return_token_ids": True, "stop_token_ids": [stop]}
    answer = complete(client, **options).choices[0]
    assert answer.token_ids == ids[: ids.index(stop) + 1]
    assert (answer.finish_reason, answer.stop_reason) == ("stop", stop)


def test_min_tokens_puts_off_the_stop(client):
    ids = complete(client, temperature=0.0, extra_body={"return_token_ids": True})
    stop = ids.choices[0].token_ids[0]
    extra = {"stop_token_ids": [stop], "min_tokens": 10}
    answer = complete(client, temperature=0.0, extra_body=extra)
    assert answer.usage.completion_tokens >= 10


def test_a_logit_bias_decides(client):
    extra = {"return_token_ids": True}
    answer = complete(client, logit_bias={"300": 100}, max_tokens=5, extra_body=extra)
    assert answer.choices[0].token_ids == [300] * 5
    banned = complete(client, temperature=0.0, extra_body=extra).choices[0].token_ids[0]
    other = complete(client, temperature=0.0, logit_bias={str(banned): -100}, extra_body=extra)
    assert banned not in other.choices[0].token_ids


def test_logprobs_are_those_of_the_chosen_tokens(client):
    answer = client.chat.completions.create(
        model=MODEL,
        messages=HELLO,
        max_tokens=12,
        temperature=0.0,
        logprobs=True,
        top_logprobs=5,
        extra_body=NO_THINKING,
    )
    entries = answer.choices[0].logprobs.content
    assert len(entries) == answer.usage.completion_tokens
    for entry in entries:
        top = [candidate.logprob for candidate in entry.top_logprobs]
        assert len(top) == 5
        assert all(before >= after for before, after in pairwise(top))
        assert sum(math.exp(value) for value in top) <= 1 + 1e-5
        # Greedy: the chosen token heads the list.
        assert entry.logprob == top[0]
        assert entry.token == entry.top_logprobs[0].token


def test_a_sampled_tokens_logprob_is_the_models_not_the_samplers(client):
    """Temperature shapes the choice, not the log-probabilities reported."""
    cold = complete(client, temperature=0.0, logprobs=5, max_tokens=1).choices[0].logprobs
    hot = complete(client, temperature=2.0, seed=1, logprobs=5, max_tokens=1).choices[0].logprobs
    for token, logprob in cold.top_logprobs[0].items():
        assert hot.top_logprobs[0][token] == pytest.approx(logprob, abs=1e-6)


def test_prompt_logprobs_cover_the_prompt(client):
    extra = {"prompt_logprobs": 2, "return_token_ids": True}
    choice = complete(client, prompt=PROMPT, max_tokens=1, extra_body=extra).choices[0]
    ids, entries = choice.prompt_token_ids, choice.prompt_logprobs
    assert len(entries) == len(ids)
    assert entries[0] is None
    for token, entry in zip(ids[1:], entries[1:], strict=True):
        found = entry[str(token)]
        assert found["logprob"] <= 0
        ranked = sorted(entry.values(), key=lambda candidate: candidate["rank"])
        assert ranked[0]["rank"] == 1
        assert all(a["logprob"] >= b["logprob"] for a, b in pairwise(ranked))
        assert found["rank"] == 1 or found["logprob"] <= ranked[0]["logprob"]
