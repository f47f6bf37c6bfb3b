"""Constrained answers hold the constraint: JSON by schema, forced tool calls, choices.

The model's weights are random, so whatever shape an answer has comes from the constraint alone.
"""

from __future__ import annotations

import json

import openai
import pytest
from serving_support import HELLO, MODEL, NO_THINKING

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "enum": ["Paris", "Rome", "Oslo"]},
        "degrees": {"type": "integer", "minimum": 0, "maximum": 40},
        "rain": {"type": "boolean"},
        "hours": {
            "type": "array",
            "items": {"type": "integer", "enum": [6, 12, 18]},
            "maxItems": 3,
        },
    },
    "required": ["city", "degrees", "rain", "hours"],
    "additionalProperties": False,
}
PARAMETERS = {
    "type": "object",
    "properties": {
        "unit": {"type": "string", "enum": ["celsius", "kelvin"]},
        "brief": {"type": "boolean"},
    },
    "required": ["unit", "brief"],
    "additionalProperties": False,
}
# Without `strict` vLLM, like OpenAI, promises the function's name but not its parameters.
WEATHER = {"name": "get_weather", "parameters": PARAMETERS, "strict": True}
TOOLS = [
    {"type": "function", "function": WEATHER},
    {"type": "function", "function": {"name": "stop", "strict": True, "parameters": PARAMETERS}},
]
FORCED = {"type": "function", "function": {"name": "get_weather"}}


@pytest.fixture(scope="module")
def no_blanks(server):
    """A logit bias against blanks, which grammars allow anywhere and random weights love."""
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    biases = {}
    for blank in ("\n", "\t", "\r", " ", "  ", "\n\n"):
        extra = {"return_token_ids": True, "add_special_tokens": False}
        answer = client.completions.create(
            model=MODEL, prompt=blank, max_tokens=1, extra_body=extra
        )
        ids = answer.choices[0].prompt_token_ids
        if len(ids) == 1:
            biases[str(ids[0])] = -20
    assert len(biases) >= 3
    return biases


@pytest.fixture
def chat(client, no_blanks):
    def ask(**options):
        extra = {**NO_THINKING, **options.pop("extra_body", {})}
        options = {"model": MODEL, "messages": HELLO, "max_tokens": 400, **options}
        return client.chat.completions.create(
            extra_body=extra, logit_bias=no_blanks, seed=0, **options
        )

    return ask


def check_report(text: str) -> None:
    report = json.loads(text)
    assert list(report) == SCHEMA["required"]
    assert report["city"] in ("Paris", "Rome", "Oslo")
    assert isinstance(report["rain"], bool)
    assert 0 <= report["degrees"] <= 40
    assert len(report["hours"]) <= 3
    assert set(report["hours"]) <= {6, 12, 18}


def check_call(name: str, arguments: str) -> None:
    assert name == "get_weather"
    found = json.loads(arguments)
    assert found["unit"] in ("celsius", "kelvin")
    assert isinstance(found["brief"], bool)
    assert len(found) == 2


JSON_SCHEMA = {"type": "json_schema", "json_schema": {"name": "report", "schema": SCHEMA}}


def test_an_answer_by_schema_is_valid(chat):
    choice = chat(response_format=JSON_SCHEMA).choices[0]
    assert choice.finish_reason == "stop"
    check_report(choice.message.content)


def test_a_streamed_answer_by_schema_is_valid(chat):
    chunks = chat(response_format=JSON_SCHEMA, stream=True)
    check_report("".join(chunk.choices[0].delta.content or "" for chunk in chunks))


def test_a_schema_holds_after_a_thought(chat):
    """The constraint starts where the thought ends."""
    extra = {"chat_template_kwargs": {"thinking": True}, "thinking_token_budget": 8}
    message = chat(response_format=JSON_SCHEMA, extra_body=extra).choices[0].message
    assert message.reasoning
    check_report(message.content)


def test_a_choice_is_one_of_those_given(chat):
    extra = {"structured_outputs": {"choice": ["yes", "no", "perhaps"]}}
    assert chat(extra_body=extra).choices[0].message.content in ("yes", "no", "perhaps")


def test_a_regex_is_matched(chat):
    extra = {"structured_outputs": {"regex": r"[0-9]{4}-[0-9]{2}"}}
    year, _, month = chat(extra_body=extra).choices[0].message.content.partition("-")
    assert (len(year), len(month)) == (4, 2)
    assert (year + month).isdigit()


def test_a_forced_tool_call_is_made(chat):
    choice = chat(tools=TOOLS, tool_choice=FORCED).choices[0]
    [call] = choice.message.tool_calls
    check_call(call.function.name, call.function.arguments)
    assert not choice.message.content
    assert choice.finish_reason in ("tool_calls", "stop")


def test_a_streamed_tool_call_is_the_same(chat):
    pieces, names, ids = [], set(), set()
    for chunk in chat(tools=TOOLS, tool_choice=FORCED, stream=True):
        delta = chunk.choices[0].delta
        assert not (delta.content or "").strip()
        for call in delta.tool_calls or []:
            assert call.index == 0
            names |= {call.function.name} - {None}
            ids |= {call.id} - {None}
            pieces.append(call.function.arguments or "")
    [name], [_] = names, ids
    check_call(name, "".join(pieces))
    whole = chat(tools=TOOLS, tool_choice=FORCED).choices[0].message.tool_calls[0]
    assert json.loads("".join(pieces)) == json.loads(whole.function.arguments)


def test_a_required_call_names_one_of_the_tools(chat):
    choice = chat(tools=TOOLS, tool_choice="required", parallel_tool_calls=False).choices[0]
    [call] = choice.message.tool_calls
    assert call.function.name in ("get_weather", "stop")
    check_call("get_weather", call.function.arguments)


def test_a_tools_result_can_be_answered(chat):
    call = {"name": "get_weather", "arguments": '{"unit": "celsius", "brief": true}'}
    turns = [
        *HELLO,
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "a", "type": "function", "function": call}],
        },
        {"role": "tool", "tool_call_id": "a", "content": "21 degrees"},
    ]
    answer = chat(messages=turns, tools=TOOLS, max_tokens=4)
    assert answer.usage.completion_tokens == 4
    without = chat(messages=HELLO, tools=TOOLS, max_tokens=4)
    assert answer.usage.prompt_tokens > without.usage.prompt_tokens


def test_a_forced_call_through_the_messages_endpoint(messages_client, no_blanks):
    tool = {"name": "get_weather", "description": "d", "input_schema": PARAMETERS, "strict": True}
    answer = messages_client.messages.create(
        model=MODEL,
        messages=HELLO,
        max_tokens=400,
        tools=[tool],
        tool_choice={"type": "tool", "name": "get_weather"},
        extra_body={**NO_THINKING, "logit_bias": no_blanks},
    )
    [block] = [block for block in answer.content if block.type == "tool_use"]
    check_call(block.name, json.dumps(block.input))


def test_a_refused_schema_leaves_tool_calls_working(chat):
    """Were the backend chosen per request, the first request would choose it for all later ones."""
    unsupported = {"type": "integer", "multipleOf": 5}
    format_ = {"type": "json_schema", "json_schema": {"name": "n", "schema": unsupported}}
    with pytest.raises(openai.BadRequestError, match="not supported by xgrammar"):
        chat(response_format=format_)
    [call] = chat(tools=TOOLS, tool_choice=FORCED).choices[0].message.tool_calls
    check_call(call.function.name, call.function.arguments)
