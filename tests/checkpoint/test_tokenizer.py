"""The tiny tokenizer speaks the model's chat format through vLLM's own encoder and parsers.

If a template string were several tokens, chats would still run, but reasoning and tool calls would
be tested against a format the real model never sees.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from vllm_deepinfer.checkpoint_maker.tokenizer import (
    CONTROL_TOKENS,
    FORMAT_TOKENS,
    NOISE_TOKEN,
    VOCAB_SIZE,
    train_tokenizer,
)
from vllm_deepinfer.models.deepseek_v41.presets import TINY_TOKENIZER, preset

RAW = Tokenizer.from_file(str(TINY_TOKENIZER))

TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
TOOL_CALL = {"name": "get_weather", "arguments": '{"city": "Paris"}'}
CONVERSATION = [
    {"role": "system", "content": "You are kind."},
    {"role": "user", "content": "Weather in Paris?"},
    {
        "role": "assistant",
        "reasoning": "I should look.",
        "tool_calls": [{"id": "a", "type": "function", "function": TOOL_CALL}],
    },
    {"role": "tool", "tool_call_id": "a", "content": "21 degrees"},
    {"role": "user", "content": "Thanks! Ünï¢ødé 天气 🙂"},
]


@pytest.fixture(scope="module")
def tokenizer(tiny_folder):
    from vllm.tokenizers.deepseek_v41 import DeepseekV41Tokenizer

    return DeepseekV41Tokenizer.from_pretrained(tiny_folder)


def test_ids_are_where_the_configuration_says(tokenizer):
    config = preset("tiny")
    assert len(tokenizer) == VOCAB_SIZE == config["text_config"]["vocab_size"]
    assert [RAW.token_to_id(token) for token in CONTROL_TOKENS] == [0, 1, 2]
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (0, 1, 2)
    assert tokenizer.eos_token_id == config["eos_token_id"]
    noise = config["text_config"]["dspark_noise_token_id"]
    assert RAW.token_to_id(NOISE_TOKEN) == noise
    assert all(RAW.id_to_token(token_id) is not None for token_id in range(VOCAB_SIZE))


def test_every_string_of_the_chat_format_is_one_token():
    """Taken from vLLM's encoder, so that a string it gains is noticed."""
    from vllm.tokenizers import deepseek_v41_encoding as encoding

    strings = [value for key, value in vars(encoding).items() if key.lower().endswith("_token")]
    strings += [*encoding.DS_TASK_SP_TOKENS.values(), encoding.IMAGE_PLACEHOLDER]
    assert len(strings) >= 13
    assert set(strings) <= {*CONTROL_TOKENS, *FORMAT_TOKENS}
    for text in (*CONTROL_TOKENS, *FORMAT_TOKENS):
        assert len(RAW.encode(f"a{text}b", add_special_tokens=False).ids) == 3, text


@given(st.text())
def test_any_text_survives_a_round_trip(text):
    ids = RAW.encode(text, add_special_tokens=False).ids
    assert RAW.decode(ids, skip_special_tokens=False) == text


@pytest.mark.parametrize("thinking", [True, False])
def test_a_rendered_conversation_survives_a_round_trip(tokenizer, thinking):
    options = {"tools": [TOOL], "thinking": thinking}
    prompt = tokenizer.apply_chat_template(CONVERSATION, tokenize=False, **options)
    ids = tokenizer.apply_chat_template(CONVERSATION, **options)
    assert tokenizer.decode(ids) == prompt
    used = {token for token in FORMAT_TOKENS if token in prompt}
    assert {"<｜User｜>", "<｜Assistant｜>", "｜DSML｜", "</think>"} <= used
    for token in used:
        assert ids.count(RAW.token_to_id(token)) == prompt.count(token), token
    assert ids[0] == 0
    assert ids.count(1) == prompt.count(CONTROL_TOKENS[1]) == 1


def test_vllms_parsers_read_reasoning_and_tool_calls(tokenizer):
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.reasoning import ReasoningParserManager
    from vllm.tool_parsers import ToolParserManager

    request = ChatCompletionRequest(messages=CONVERSATION[:2], tools=[TOOL], model="tiny")
    prompt = tokenizer.apply_chat_template(CONVERSATION[:3], tools=[TOOL], tokenize=False)
    answer = prompt.rpartition("<think>")[2].removesuffix(CONTROL_TOKENS[1])
    answer = tokenizer.decode(tokenizer.encode(answer, add_special_tokens=False))

    reasoning = ReasoningParserManager.get_reasoning_parser("deepseek_v41")(tokenizer)
    thought, rest = reasoning.extract_reasoning(answer, request)
    assert thought == "I should look."
    tools = ToolParserManager.get_tool_parser("deepseek_v41")(tokenizer, request.tools)
    calls = tools.extract_tool_calls(rest or answer, request)
    assert calls.tools_called
    assert [call.function.name for call in calls.tool_calls] == ["get_weather"]
    assert calls.tool_calls[0].function.arguments == TOOL_CALL["arguments"]


def test_training_gives_the_shipped_file():
    assert train_tokenizer() + "\n" == TINY_TOKENIZER.read_text(encoding="utf-8")
