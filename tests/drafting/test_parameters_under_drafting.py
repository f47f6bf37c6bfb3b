"""Every request parameter gives with drafting what it gives without, or is refused by its name.

All requests run in one batch per engine, each is compared alone. If one fails, a parameter that
looks back at the text so far looked at rejected drafts too, or an end was noticed a few accepted
tokens late.
"""

from __future__ import annotations

import pytest
from drafting.comparison import (
    Verifications,
    both_engines,
    compare,
    generate,
    random_prompt,
    sampling,
    seen,
    tokens,
)
from vllm.exceptions import VLLMValidationError

PARAMETERS = {
    "repetition_penalty": {"repetition_penalty": 1.7},
    "presence_penalty": {"presence_penalty": 2.0},
    "frequency_penalty": {"frequency_penalty": 2.0},
    "penalties below zero": {"presence_penalty": -1.5, "frequency_penalty": -2.0},
    "all penalties, sampled": {
        "repetition_penalty": 1.3,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.5,
        "temperature": 0.3,
        "seed": 1,
    },
    "allowed_token_ids": {"allowed_token_ids": [t for t in range(512) if t % 4]},
    "allowed_token_ids, four": {"allowed_token_ids": [5, 77, 300, 301]},
    "allowed_token_ids, sampled": {
        "allowed_token_ids": list(range(20, 60)),
        "temperature": 1.0,
        "seed": 2,
    },
    "logprobs 0": {"logprobs": 0},
    "logprobs 7": {"logprobs": 7, "temperature": 0.3, "seed": 3},
    "no logprobs": {"logprobs": None},
    "logprob_token_ids": {"logprobs": None, "logprob_token_ids": [9, 5, 300]},
    "prompt_logprobs": {"prompt_logprobs": 3},
    "n": {"n": 3, "temperature": 0.3, "seed": 4},
    "top_k 1": {"top_k": 1, "temperature": 2.0, "seed": 5},
    "eos": {"ignore_eos": False, "temperature": 2.0, "seed": 6},
}
PROMPT = random_prompt(5, 12)
NUM_TOKENS = 9


@pytest.fixture(scope="module")
def engines(tiny_folder):
    with both_engines(tiny_folder) as engines:
        yield engines


@pytest.fixture(scope="module")
def batches(engines):
    """Answers by parameter without and with drafting, and the drafts accepted."""
    requests = [(PROMPT, sampling(NUM_TOKENS, **options)) for options in PARAMETERS.values()]
    wanted = generate(engines[0], requests)
    with Verifications(engines[1]) as verifications:
        found = generate(engines[1], requests)
    names = list(PARAMETERS)
    ids = {output.request_id: name for output, name in zip(found, names, strict=True)}
    accepted = {ids.get(request_id): n for request_id, n in verifications.accepted.items()}
    return dict(zip(names, wanted, strict=True)), dict(zip(names, found, strict=True)), accepted


@pytest.fixture(scope="module")
def greedy(engines):
    """The greedy answer; its tokens are those to stop at."""
    [output] = compare(*engines, [(PROMPT, sampling(14))])
    return tokens(output)


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameter(batches, name):
    wanted, found, _ = batches
    assert seen(found[name]) == seen(wanted[name])


def test_parameters_met_accepted_drafts(batches):
    accepted = batches[2]
    assert all(accepted[name] > 0 for name in PARAMETERS if "penal" in name), accepted
    assert accepted["prompt_logprobs"] > 0
    assert accepted["allowed_token_ids"] > 0


def test_listed_tokens_are_scored_alone(engines):
    """Where no request of the step asks for other log-probabilities."""
    listed = {"logprobs": None, "logprob_token_ids": [9, 5]}
    [output] = compare(*engines, [(PROMPT, sampling(NUM_TOKENS, **listed))])
    rows = output.outputs[0].logprobs
    assert [set(row) for row in rows] == [{9, 5, token} for token in tokens(output)]


@pytest.mark.parametrize("options", [{"min_p": 0.1, "temperature": 1.0}, {"logit_bias": {7: 5.0}}])
def test_what_vllm_refuses_with_drafting_is_refused_by_name(engines, options):
    """vLLM checks this before any hook of a platform; without drafting both are served."""
    [name] = {"min_p", "logit_bias"} & set(options)
    request = [(PROMPT, sampling(2, **options))]
    with pytest.raises(VLLMValidationError, match=f"{name}.*not yet supported with speculative"):
        generate(engines[1], request)
    assert len(tokens(generate(engines[0], request)[0])) == 2


def test_stop_ids_anywhere_in_a_run(engines, greedy):
    requests = [(PROMPT, sampling(14, stop_token_ids=[token])) for token in greedy[1:8]]
    for count, output in enumerate(compare(*engines, requests), start=2):
        assert tokens(output) == greedy[:count]
        assert output.outputs[0].finish_reason == "stop"


def test_stop_strings_anywhere_in_a_run(engines, greedy):
    tokenizer = engines[0].get_tokenizer()
    pieces = [tokenizer.decode([token]) for token in greedy]
    stops = [piece for piece in pieces[1:] if len(piece) > 1 and piece.isascii()][:4]
    across = tokenizer.decode(list(greedy[2:5]))[1:]
    requests = [(PROMPT, sampling(14, stop=[stop])) for stop in [*stops, across]]
    requests += [(PROMPT, sampling(14, stop=stops[:1], include_stop_str_in_output=True))]
    answers = compare(*engines, requests)
    assert len(stops) >= 3
    assert {output.outputs[0].finish_reason for output in answers} == {"stop"}


@pytest.mark.parametrize("num_tokens", range(1, 7))
def test_max_tokens_inside_a_run(engines, greedy, num_tokens):
    requests = [(PROMPT, sampling(num_tokens))]
    found, wanted = (generate(llm, requests)[0] for llm in engines)
    assert tokens(found) == greedy[:num_tokens]
    assert seen(found) == seen(wanted)


def test_min_tokens(engines, greedy):
    """A stop token cannot come before it, also where a draft is the token after the last one."""
    requests = [
        (PROMPT, sampling(14, stop_token_ids=[greedy[2]], min_tokens=count)) for count in range(7)
    ]
    answers = compare(*engines, requests)
    assert tokens(answers[0]) == greedy[:3]
    assert tokens(answers[4])[:2] == greedy[:2]
    assert tokens(answers[4])[2] != greedy[2]


def test_bad_words(engines, greedy):
    tokenizer = engines[0].get_tokenizer()
    words = [tokenizer.decode([greedy[3]]).strip(), tokenizer.decode(list(greedy[4:6])).strip()]
    requests = [(PROMPT, sampling(14, bad_words=[word])) for word in words if word]
    assert requests
    answers = compare(*engines, requests)
    assert any(tokens(output) != greedy for output in answers)
