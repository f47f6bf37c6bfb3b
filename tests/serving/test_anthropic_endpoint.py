"""/v1/messages through the `anthropic` library, whole and streamed.

The model thinks first, so a short answer is a thinking block; clients that show only text blocks
must be able to switch that off.
"""

from __future__ import annotations

import anthropic
import pytest
from serving_support import HELLO, MODEL, NO_THINKING

OPTIONS = {"model": MODEL, "messages": HELLO, "max_tokens": 16}


def body(**options):
    return {"extra_body": {"temperature": 0.0, "ignore_eos": True, **options}}


@pytest.mark.parametrize(
    ("thinking", "kind", "field"), [(True, "thinking", "thinking"), (False, "text", "text")]
)
def test_streamed_and_whole_messages_agree(messages_client, thinking, kind, field):
    options = {**OPTIONS, **body(**({} if thinking else NO_THINKING))}
    whole = messages_client.messages.create(**options)
    assert whole.type == "message"
    assert whole.role == "assistant"
    assert whole.stop_reason == "max_tokens"
    assert whole.usage.output_tokens == 16
    assert [block.type for block in whole.content] == [kind]

    with messages_client.messages.stream(**options) as stream:
        names = [event.type for event in stream]
        final = stream.get_final_message()
    assert getattr(final.content[0], field) == getattr(whole.content[0], field) != ""
    assert final.usage.output_tokens == 16
    assert final.stop_reason == "max_tokens"
    assert names[0] == "message_start"
    assert names[-1] == "message_stop"
    assert names.count("content_block_delta") > 5, "it came in pieces"


def test_thinking_can_be_disabled_the_anthropic_way(messages_client):
    answer = messages_client.messages.create(thinking={"type": "disabled"}, **OPTIONS)
    assert [block.type for block in answer.content] == ["text"]


def test_the_system_prompt_is_read(messages_client):
    plain = messages_client.messages.create(**OPTIONS, **body())
    system = messages_client.messages.create(system="Answer in one word.", **OPTIONS, **body())
    assert system.usage.input_tokens > plain.usage.input_tokens


def test_counted_tokens_are_the_tokens_charged(messages_client):
    counted = messages_client.messages.count_tokens(model=MODEL, messages=HELLO)
    charged = messages_client.messages.create(**OPTIONS).usage.input_tokens
    assert counted.input_tokens == charged


def test_an_image_is_refused_by_name(messages_client, still_serves):
    source = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}
    messages = [{"role": "user", "content": [{"type": "image", "source": source}]}]
    with pytest.raises(anthropic.BadRequestError, match=r"image input.*text only"):
        messages_client.messages.create(model=MODEL, messages=messages, max_tokens=4)


def test_an_unknown_model_is_not_found(messages_client, still_serves):
    with pytest.raises(anthropic.NotFoundError, match="nonesuch"):
        messages_client.messages.create(model="nonesuch", messages=HELLO, max_tokens=4)
