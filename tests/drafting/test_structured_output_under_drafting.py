"""Constrained answers are the same with drafting, and drafts that a grammar forbids do no harm.

For both grammar backends: regular expressions, JSON schemas, EBNF grammars and choices, greedy and
sampled, in one batch with free requests. If one fails, the grammar advanced over drafts that were
not accepted, or a row was masked by the state of another.
"""

from __future__ import annotations

import json
import re

import pytest
from drafting.comparison import (
    Verifications,
    both_engines,
    generate,
    random_prompt,
    sampling,
    seen,
    tokens,
)
from vllm.sampling_params import StructuredOutputsParams

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "enum": ["Paris", "Rome"]},
        "rain": {"type": "boolean"},
    },
    "required": ["city", "rain"],
    "additionalProperties": False,
}
GRAMMAR = """
root ::= sum "="
sum ::= digit ("+" digit){3,5}
digit ::= [0-9]
"""
LARK = """
start: digit ("+" digit){3,5} "="
digit: /[0-9]/
"""
REGEX = r"[a-z]{3,6} [0-9]{4}-[0-9]{2}"


def constraints(backend: str) -> dict[str, dict]:
    grammar = GRAMMAR if backend == "xgrammar" else LARK
    return {
        "regex": {"regex": REGEX},
        "json": {"json": SCHEMA, "disable_any_whitespace": True},
        "grammar": {"grammar": grammar},
        "choice": {"choice": ["yes", "no", "perhaps"]},
    }


def requests_for(backend: str):
    requests = [(random_prompt(30, 6), sampling(8))]
    for number, constraint in enumerate(constraints(backend).values()):
        for temperature in (0.0, 1.0):
            params = sampling(
                16,
                temperature=temperature,
                seed=number,
                ignore_eos=False,
                structured_outputs=StructuredOutputsParams(**constraint),
            )
            requests.append((random_prompt(31 + number, 6), params))
    return requests


@pytest.fixture(scope="module", params=["xgrammar", "guidance"])
def answers(request, tiny_folder):
    requests = requests_for(request.param)
    options = {"structured_outputs_config": {"backend": request.param}}
    with both_engines(tiny_folder, **options) as (plain, drafting):
        wanted = generate(plain, requests)
        with Verifications(drafting) as verifications:
            found = generate(drafting, requests)
        # Not their texts: vLLM puts what is left of a prompt that ends inside a character first.
        tokenizer = plain.get_tokenizer()
        texts = [tokenizer.decode(tokens(o), skip_special_tokens=True) for o in found]
    return wanted, found, verifications, texts


def test_answers_are_equal(answers):
    wanted, found, *_ = answers
    assert [seen(output) for output in found] == [seen(output) for output in wanted]


def test_drafts_were_accepted_and_forbidden(answers):
    _, found, verifications, _ = answers
    constrained = [output.request_id for output in found[1:]]
    assert sum(verifications.accepted[name] for name in constrained) > 0
    # Drafts after a forbidden one are not offered.
    assert any(offered < 5 for offered, _ in verifications.blocks)


def test_answers_hold_their_constraint(answers):
    found, texts = answers[1][1:], answers[3][1:]
    whole = [
        text if output.outputs[0].finish_reason == "stop" else None
        for output, text in zip(found, texts, strict=True)
    ]
    regex, reports, sums, choices = whole[:2], whole[2:4], whole[4:6], whole[6:]
    assert all(re.fullmatch(REGEX, text) for text in regex if text)
    assert all(set(json.loads(text)) == set(SCHEMA["required"]) for text in reports if text)
    assert all(re.fullmatch(r"\d(\+\d){3,5}=", text) for text in sums if text)
    assert set(choices) <= {"yes", "no", "perhaps"}
    assert sum(text is not None for text in whole) >= 4
