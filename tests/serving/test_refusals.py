"""What cannot be served is refused with a 4xx that names the problem, and the server lives on.

A 500 tells a user nothing; a request that kills the engine takes everyone else's with it; an
ignored constraint gives an answer that only looks right.
"""

from __future__ import annotations

import openai
import pytest
from serving_support import HELLO, MAX_MODEL_LEN_TOKENS, MODEL, NO_THINKING, VOCAB_SIZE

pytestmark = pytest.mark.usefixtures("still_serves")

PIXEL = "data:image/png;base64,iVBORw0KGgo="


def chat(client, **options):
    options = {"model": MODEL, "messages": HELLO, "max_tokens": 4, **options}
    return client.chat.completions.create(**options)


def complete(client, **options):
    return client.completions.create(**{"model": MODEL, "max_tokens": 4, "prompt": [5], **options})


def user(*parts):
    return [{"role": "user", "content": [{"type": "text", "text": "What is this?"}, *parts]}]


def json_schema(schema):
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}


TOO_LONG = [7] * (MAX_MODEL_LEN_TOKENS + 1)
CASES = {
    "chat over max_model_len": (
        chat,
        {"messages": [{"role": "user", "content": "why " * MAX_MODEL_LEN_TOKENS}]},
        r"maximum context length is 2048 tokens.*prompt contains",
    ),
    "completion over max_model_len": (
        complete,
        {"prompt": TOO_LONG},
        r"maximum context length is 2048 tokens.*prompt contains.*2049",
    ),
    "id past the vocabulary": (
        complete,
        {"prompt": [5, VOCAB_SIZE]},
        rf"[Tt]oken id {VOCAB_SIZE} is out of vocabulary",
    ),
    "id far past the vocabulary": (
        complete,
        {"prompt": [[5], [6, 2**31]]},
        rf"[Tt]oken id {2**31} is out of vocabulary",
    ),
    "negative id": (complete, {"prompt": [5, -1]}, r"greater than or equal to 0.*-1"),
    "logit bias past the vocabulary": (
        chat,
        {"logit_bias": {str(VOCAB_SIZE): 1}},
        rf"{VOCAB_SIZE}.*logit_bias.*out-of-vocab",
    ),
    "image": (
        chat,
        {"messages": user({"type": "image_url", "image_url": {"url": PIXEL}})},
        r"messages\[0\].*image input.*text only",
    ),
    "image in a later turn": (
        chat,
        {
            "messages": [
                *HELLO,
                {"role": "assistant", "content": "Hi."},
                *user({"type": "image_url", "image_url": {"url": PIXEL}}),
            ]
        },
        r"messages\[2\].*image input.*text only",
    ),
    "audio": (
        chat,
        {"messages": user({"type": "input_audio", "input_audio": {"data": "", "format": "wav"}})},
        r"audio input.*text only",
    ),
    "video": (
        chat,
        {"messages": user({"type": "video_url", "video_url": {"url": "data:video/mp4;base64,"}})},
        r"video input.*text only",
    ),
    "schema with an unresolved reference": (
        chat,
        {"response_format": json_schema({"$ref": "#/nowhere"})},
        r"schema.*nowhere",
    ),
    "schema whose properties are no object": (
        chat,
        {"response_format": json_schema({"type": "object", "properties": 5})},
        r"schema.*properties must be an object",
    ),
    "schema that nothing satisfies": (
        chat,
        {"response_format": json_schema({"type": "integer", "minimum": 5, "maximum": 2})},
        r"minimum greater than maximum",
    ),
    "schema with a broken pattern": (
        chat,
        {"response_format": json_schema({"type": "string", "pattern": "("})},
        r"[Rr]egex",
    ),
    "schema with what xgrammar would ignore": (
        chat,
        {"response_format": json_schema({"type": "integer", "multipleOf": 5})},
        r"features not supported by xgrammar",
    ),
    "unknown response format": (
        chat,
        {"response_format": {"type": "yaml"}},
        r"response_format.*yaml",
    ),
    "negative max_tokens": (chat, {"max_tokens": -1}, r"max_tokens must be at least 1, got -1"),
    "zero max_tokens": (complete, {"max_tokens": -5}, r"max_tokens must be at least 1, got -5"),
    "negative temperature": (chat, {"temperature": -1.0}, r"temperature must be non-negative"),
    "top_p above one": (chat, {"top_p": 2.0}, r"top_p must be in"),
    "greedy choices": (chat, {"n": 2, "temperature": 0.0}, r"n must be 1 when using greedy"),
    "no choices": (chat, {"n": 0}, r"n must be at least 1"),
    "too many logprobs": (chat, {"logprobs": True, "top_logprobs": 21}, r"logprobs of 21.*20"),
    "empty prompt": (complete, {"prompt": ""}, r"prompt.*non-empty"),
    "prompt embeddings": (
        complete,
        {"extra_body": {"prompt_embeds": "AAAA"}, "prompt": None},
        r"prompt_embeds",
    ),
    "unknown role": (chat, {"messages": [{"role": "alien", "content": "hi"}]}, r"alien"),
    "effort out of range": (
        chat,
        {"extra_body": {"chat_template_kwargs": {"reasoning_effort": 101}}},
        r"reasoning_effort.*\[1, 100\]",
    ),
    "tool choice that is no tool": (
        chat,
        {
            "tools": [{"type": "function", "function": {"name": "f"}}],
            "tool_choice": {"type": "function", "function": {"name": "g"}},
        },
        r"tool_choice",
    ),
}


@pytest.mark.parametrize(("call", "options", "words"), CASES.values(), ids=CASES)
def test_bad_requests_are_named(client, call, options, words):
    with pytest.raises(openai.BadRequestError, match=words):
        call(client, **options)


@pytest.mark.parametrize("call", [chat, complete])
def test_unknown_models_are_not_found(client, call):
    with pytest.raises(openai.NotFoundError, match="nonesuch"):
        call(client, model="nonesuch")


def test_streams_are_refused_before_they_start(client):
    with pytest.raises(openai.BadRequestError, match=r"image input.*text only"):
        image = {"type": "image_url", "image_url": {"url": PIXEL}}
        chat(client, messages=user(image), stream=True)
    with pytest.raises(openai.BadRequestError, match="maximum context length"):
        complete(client, prompt=TOO_LONG, stream=True)


def test_what_the_engine_refuses_ends_the_stream_with_the_reason(client):
    """vLLM has sent its 200 by then; the error is the stream's only event."""
    with pytest.raises(openai.APIError, match=f"Token id {VOCAB_SIZE} is out of vocabulary"):
        list(complete(client, prompt=[VOCAB_SIZE], stream=True))


@pytest.mark.parametrize("part", [{"type": "input_image", "image_url": PIXEL, "detail": "auto"}])
def test_the_responses_endpoint_refuses_images_too(client, part):
    with pytest.raises(openai.BadRequestError, match=r"image input.*text only"):
        client.responses.create(model=MODEL, input=[{"role": "user", "content": [part]}])


def test_the_limits_themselves_are_served(client):
    """One step inside each limit: the refusals above are not refusals of everything."""
    edge = complete(client, prompt=[VOCAB_SIZE - 1], max_tokens=1)
    assert edge.usage.completion_tokens == 1
    full = complete(client, prompt=TOO_LONG[: MAX_MODEL_LEN_TOKENS - 1], max_tokens=1)
    assert full.usage.total_tokens == MAX_MODEL_LEN_TOKENS
    cut = complete(client, prompt=TOO_LONG[:-20], max_tokens=100, extra_body={"ignore_eos": True})
    assert cut.usage.total_tokens == MAX_MODEL_LEN_TOKENS
    assert cut.choices[0].finish_reason == "length"
    texts = chat(client, messages=user({"type": "text", "text": "image_url"}), max_tokens=1)
    assert texts.usage.completion_tokens == 1
    twenty = chat(client, logprobs=True, top_logprobs=20, extra_body=NO_THINKING, max_tokens=1)
    assert len(twenty.choices[0].logprobs.content[0].top_logprobs) == 20
