"""Thinking as a user meets it: on by default, cut short, budgeted, switched off.

The model thinks first. With a small `max_tokens` the answer is reasoning only, its content null and
its finish reason "length"; that is how vLLM says it, and no content may leak in either direction.
"""

from __future__ import annotations

import pytest
from serving_support import HELLO, MODEL


def chat(client, max_tokens=16, **extra):
    return client.chat.completions.create(
        model=MODEL,
        messages=HELLO,
        max_tokens=max_tokens,
        temperature=0.0,
        extra_body={"ignore_eos": True, **extra},
    )


def test_a_cut_off_thought_is_reasoning_without_content(client):
    answer = chat(client)
    choice = answer.choices[0]
    assert choice.finish_reason == "length"
    assert choice.message.content is None
    assert choice.message.reasoning
    assert answer.usage.completion_tokens_details.reasoning_tokens == 16


OFF = [
    {"chat_template_kwargs": {"thinking": False}},
    {"chat_template_kwargs": {"enable_thinking": False}},
    {"reasoning_effort": "none"},
]


@pytest.mark.parametrize("how", OFF, ids=str)
def test_without_thinking_there_is_only_content(client, how):
    answer = chat(client, **how)
    message = answer.choices[0].message
    assert message.content
    assert message.reasoning is None
    assert answer.usage.completion_tokens_details.reasoning_tokens == 0
    assert answer.usage.prompt_tokens < chat(client).usage.prompt_tokens, "no effort line"


def test_a_budget_ends_the_thought_and_content_follows(client):
    answer = chat(client, thinking_token_budget=5, max_tokens=20)
    message = answer.choices[0].message
    assert message.reasoning
    assert message.content
    assert answer.usage.completion_tokens_details.reasoning_tokens == 5
    free = chat(client, max_tokens=5).choices[0].message.reasoning
    assert message.reasoning == free, "the budget cuts the thought and changes none of it"


def test_a_stream_sends_the_thought_then_the_content(client):
    extra = {"ignore_eos": True, "thinking_token_budget": 5}
    options = {"model": MODEL, "messages": HELLO, "max_tokens": 20, "temperature": 0.0}
    stream = client.chat.completions.create(stream=True, extra_body=extra, **options)
    pieces = []
    for chunk in stream:
        delta = chunk.choices[0].delta
        reasoning = getattr(delta, "reasoning", None)
        assert not (reasoning and delta.content), "one or the other"
        pieces += [("reasoning", reasoning)] if reasoning else []
        pieces += [("content", delta.content)] if delta.content else []
    kinds = [kind for kind, _ in pieces]
    assert kinds == sorted(kinds, reverse=True), "no thought after the first content"
    whole = chat(client, thinking_token_budget=5, max_tokens=20).choices[0].message
    for kind, text in (("reasoning", whole.reasoning), ("content", whole.content)):
        assert "".join(piece for found, piece in pieces if found == kind) == text


def test_effort_is_written_into_the_prompt(client):
    efforts = [chat(client, 1, chat_template_kwargs={"reasoning_effort": n}) for n in (5, 100)]
    assert efforts[1].usage.prompt_tokens > efforts[0].usage.prompt_tokens, "5 against 100"
