"""Chats and completions through the `openai` library: the same answer streamed or whole.

A break here is the first thing a user sees: a stream without its usage or its end hangs clients,
and a stream that differs from the whole answer is a wrong answer.
"""

from __future__ import annotations

import json
import urllib.request

import pytest
from serving_support import (
    HELLO,
    MAX_MODEL_LEN_TOKENS,
    MODEL,
    NO_THINKING,
    REQUEST_TIMEOUT_S,
)

GREEDY = {"temperature": 0.0, "max_tokens": 24, "extra_body": {**NO_THINKING, "ignore_eos": True}}


def test_models_lists_the_one_model(client):
    models = client.models.list().data
    assert [model.id for model in models] == [MODEL]
    assert models[0].max_model_len == MAX_MODEL_LEN_TOKENS


def test_a_chat_is_answered(client):
    answer = client.chat.completions.create(model=MODEL, messages=HELLO, **GREEDY)
    choice = answer.choices[0]
    assert choice.message.role == "assistant"
    assert choice.message.content
    assert choice.finish_reason == "length"
    assert answer.usage.completion_tokens == 24
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 24


def test_a_streamed_chat_is_the_same_answer(client):
    whole = client.chat.completions.create(model=MODEL, messages=HELLO, **GREEDY)
    chunks = list(
        client.chat.completions.create(
            model=MODEL,
            messages=HELLO,
            stream=True,
            stream_options={"include_usage": True},
            **GREEDY,
        )
    )
    *deltas, last = chunks
    assert last.choices == []
    assert last.usage.prompt_tokens == whole.usage.prompt_tokens
    assert last.usage.completion_tokens == whole.usage.completion_tokens
    assert deltas[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in deltas)
    assert text == whole.choices[0].message.content
    assert len(deltas) > 10, "it came in pieces"
    reasons = [chunk.choices[0].finish_reason for chunk in deltas]
    assert reasons == [None] * (len(deltas) - 1) + ["length"]


@pytest.mark.parametrize("path", ["chat/completions", "completions"])
def test_a_stream_ends_with_usage_and_done(server, path):
    """The bytes themselves: client libraries hide the terminator."""
    body = {"model": MODEL, "max_tokens": 3, "stream": True}
    body |= {"stream_options": {"include_usage": True}, "ignore_eos": True}
    body |= {"messages": HELLO} if path.startswith("chat") else {"prompt": "Hello"}
    request = urllib.request.Request(
        f"{server.url}/v1/{path}",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=REQUEST_TIMEOUT_S) as response:
        assert response.headers["Content-Type"].startswith("text/event-stream")
        events = [event for event in response.read().decode().split("\n\n") if event]
    assert all(event.startswith("data: ") for event in events)
    assert events[-1] == "data: [DONE]"
    usage = json.loads(events[-2].removeprefix("data: "))
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 3


def test_a_later_turn_contains_the_earlier_ones(client):
    one = client.chat.completions.create(model=MODEL, messages=HELLO, **GREEDY)
    turns = [*HELLO, {"role": "assistant", "content": "Hi."}, {"role": "user", "content": "Why?"}]
    two = client.chat.completions.create(model=MODEL, messages=turns, **GREEDY)
    assert two.usage.prompt_tokens > one.usage.prompt_tokens + 4
    parts = [{"type": "text", "text": HELLO[0]["content"]}]
    same = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": parts}], **GREEDY
    )
    assert same.usage.prompt_tokens == one.usage.prompt_tokens
    assert same.choices[0].message.content == one.choices[0].message.content


def test_completions_take_text_ids_and_lists_of_both(server, client):
    options = {"model": MODEL, "temperature": 0.0, "max_tokens": 12}
    options["extra_body"] = {"ignore_eos": True, "return_token_ids": True}
    by_text = client.completions.create(prompt="The weather in Paris", **options)
    ids = by_text.choices[0].prompt_token_ids
    assert by_text.usage.prompt_tokens == len(ids) > 4
    by_ids = client.completions.create(prompt=ids, **options)
    assert by_ids.choices[0].token_ids == by_text.choices[0].token_ids
    assert by_ids.choices[0].text == by_text.choices[0].text

    both = client.completions.create(prompt=[ids, [5, 6, 7]], **options)
    assert [choice.index for choice in both.choices] == [0, 1]
    assert [choice.prompt_token_ids for choice in both.choices] == [ids, [5, 6, 7]]
    assert both.usage.completion_tokens == 24


def test_a_streamed_completion_is_the_same_answer(client):
    options = {"model": MODEL, "prompt": "The weather in Paris", "temperature": 0.0}
    options |= {"max_tokens": 24, "extra_body": {"ignore_eos": True}}
    whole = client.completions.create(**options).choices[0].text
    pieces = [chunk.choices[0].text for chunk in client.completions.create(stream=True, **options)]
    assert "".join(pieces) == whole
    assert len(pieces) > 10


def test_echo_returns_the_prompt_with_the_answer(client):
    options = {"model": MODEL, "prompt": "Paris is", "temperature": 0.0, "max_tokens": 4}
    plain = client.completions.create(**options).choices[0].text
    assert client.completions.create(echo=True, **options).choices[0].text == "Paris is" + plain
