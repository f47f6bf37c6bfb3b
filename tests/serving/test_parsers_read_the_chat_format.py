"""vLLM's `deepseek_v41` parsers undo what its encoder writes, whole and token by token.

The checkpoint's weights are random and end no thought and call no tool of their own accord, so the
answers here are written by the encoder, pass through the checkpoint's tokenizer, and are parsed as
the server does it. A break here shows as reasoning in the answer, or tool calls as plain text.
"""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.parser import ParserManager
from vllm.tokenizers.deepseek_v41 import DeepseekV41Tokenizer

END = "<｜end▁of▁sentence｜>"
QUESTION = {"role": "user", "content": "Weather in Paris?"}
PROPERTIES = {
    "city": {"type": "string"},
    "days": {"type": "integer"},
    "exact": {"type": "boolean"},
    "place": {"type": "object"},
}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {"type": "object", "properties": PROPERTIES},
        },
    }
    for name in ("get_weather", "get_tides")
]
CHECKS = settings(
    max_examples=200,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
# Any characters, newlines and emoji among them, but no part of the format itself. The format drops
# blanks at the ends of a thought and of content before a call.
PROSE = st.text(st.characters(exclude_characters="<>｜", exclude_categories=["Cs"]), max_size=40)
SENTENCE = PROSE.map(str.strip).filter(bool)
ARGUMENTS = st.fixed_dictionaries(
    {},
    optional={
        "city": PROSE,
        "days": st.integers(-(2**40), 2**40),
        "exact": st.booleans(),
        "place": st.dictionaries(st.sampled_from("abc"), st.integers(0, 9) | PROSE, max_size=3),
    },
)
CALLS = st.lists(st.tuples(st.sampled_from(["get_weather", "get_tides"]), ARGUMENTS), max_size=3)


@pytest.fixture(scope="module")
def tokenizer(tiny_folder):
    return DeepseekV41Tokenizer.from_pretrained(tiny_folder)


class Answer:
    """What a parser found: the thought, the content, and (name, arguments) of each call."""

    def __init__(self, reasoning: str | None, content: str | None, calls: list[tuple[str, str]]):
        self.reasoning = reasoning or ""
        self.content = content or ""
        self.calls = [(name, json.loads(arguments)) for name, arguments in calls]


def written(tokenizer, reasoning, content, calls, thinking) -> tuple[list[int], list[int]]:
    """Ids of the prompt and of the answer that vLLM's encoder writes for these parts."""
    message = {"role": "assistant", "content": content}
    if thinking:
        message["reasoning"] = reasoning
    if calls:
        message["tool_calls"] = [
            {
                "id": str(index),
                "type": "function",
                "function": {"name": name, "arguments": json.dumps(arguments)},
            }
            for index, (name, arguments) in enumerate(calls)
        ]
    options = {"tools": TOOLS, "thinking": thinking, "tokenize": False}
    text = tokenizer.apply_chat_template([QUESTION, message], **options)
    prompt = tokenizer.apply_chat_template([QUESTION], **options)
    assert text.startswith(prompt)
    answer = text.removeprefix(prompt).removesuffix(END)
    return [tokenizer.encode(part, add_special_tokens=False) for part in (prompt, answer)]


def make_parser(tokenizer, thinking):
    parser_class = ParserManager.get_parser(
        tool_parser_name="deepseek_v41",
        reasoning_parser_name="deepseek_v41",
        enable_auto_tools=True,
        tokenizer=tokenizer,
    )
    request = ChatCompletionRequest(
        model="tiny",
        messages=[QUESTION],
        tools=TOOLS,
        tool_choice="auto",
        chat_template_kwargs={"thinking": thinking},
    )
    arguments = {"chat_template_kwargs": {"thinking": thinking}}
    return parser_class(tokenizer, request.tools, **arguments), request


def parse_whole(tokenizer, prompt, answer, thinking) -> Answer:
    parser, request = make_parser(tokenizer, thinking)
    parser.set_prompt_token_ids(prompt)
    text = tokenizer.decode(answer)
    reasoning, content, calls = parser.parse(
        text, request, enable_auto_tools=True, model_output_token_ids=answer
    )
    return Answer(reasoning, content, [(call.name, call.arguments) for call in calls or []])


def text_pieces(tokenizer, ids) -> list[str]:
    """The text each token adds; a token inside a character adds nothing, its last adds it all."""
    pieces, sent = [], 0
    for count in range(1, len(ids) + 1):
        text = tokenizer.decode(ids[:count])
        complete = count == len(ids) or not text.endswith("\ufffd")
        pieces.append(text[sent:] if complete else "")
        sent = len(text) if complete else sent
    return pieces


def parse_stream(tokenizer, prompt, answer, thinking, tokens_per_step) -> Answer:
    parser, request = make_parser(tokenizer, thinking)
    pieces = text_pieces(tokenizer, answer)
    reasoning, content, calls = "", "", {}
    for start in range(0, max(len(answer), 1), tokens_per_step):
        step = slice(start, start + tokens_per_step)
        delta = parser.parse_delta(
            "".join(pieces[step]),
            answer[step],
            request,
            prompt_token_ids=prompt,
            finished=start + tokens_per_step >= len(answer),
        )
        if delta is None:
            continue
        reasoning += delta.reasoning or ""
        content += delta.content or ""
        for call in delta.tool_calls or []:
            name, arguments = calls.get(call.index, ("", ""))
            name += call.function.name or ""
            calls[call.index] = (name, arguments + (call.function.arguments or ""))
    return Answer(reasoning, content, [calls[index] for index in sorted(calls)])


def check(found: Answer, reasoning: str, content: str, calls) -> None:
    assert found.reasoning == reasoning
    # vLLM leaves the blank line that the format puts between content and calls.
    assert (found.content.removesuffix("\n\n") if calls else found.content) == content
    assert found.calls == [(name, arguments) for name, arguments in calls]


@CHECKS
@given(reasoning=SENTENCE, content=SENTENCE | st.just(""), calls=CALLS)
def test_an_answer_with_a_thought_is_taken_apart(tokenizer, reasoning, content, calls):
    prompt, answer = written(tokenizer, reasoning, content, calls, thinking=True)
    check(parse_whole(tokenizer, prompt, answer, True), reasoning, content, calls)


@CHECKS
@given(content=SENTENCE | st.just(""), calls=CALLS)
def test_an_answer_without_a_thought_is_taken_apart(tokenizer, content, calls):
    prompt, answer = written(tokenizer, "", content, calls, thinking=False)
    check(parse_whole(tokenizer, prompt, answer, False), "", content, calls)


@CHECKS
@given(
    reasoning=SENTENCE,
    content=SENTENCE | st.just(""),
    calls=CALLS,
    thinking=st.booleans(),
    tokens_per_step=st.sampled_from([1, 2, 5]),
)
def test_streamed_pieces_add_up_to_the_same(
    tokenizer, reasoning, content, calls, thinking, tokens_per_step
):
    """Several tokens a step is what drafting gives."""
    reasoning = reasoning if thinking else ""
    prompt, answer = written(tokenizer, reasoning, content, calls, thinking)
    found = parse_stream(tokenizer, prompt, answer, thinking, tokens_per_step)
    check(found, reasoning, content, calls)


def test_a_thought_cut_short_is_all_reasoning(tokenizer):
    prompt, answer = written(tokenizer, "I should look at the sky.", "Fine.", [], thinking=True)
    for cut in range(1, 8):
        for found in (
            parse_whole(tokenizer, prompt, answer[:cut], True),
            parse_stream(tokenizer, prompt, answer[:cut], True, 1),
        ):
            check(found, tokenizer.decode(answer[:cut]), "", [])


def test_a_call_cut_short_never_shows_its_markup(tokenizer):
    """`max_tokens` may fall anywhere in a call; what was read so far must be valid JSON."""
    arguments = {"city": "Paris", "days": 3}
    prompt, answer = written(tokenizer, "I look.", "", [("get_weather", arguments)], thinking=True)
    texts = {count: tokenizer.decode(answer[:count]) for count in range(len(answer))}
    cuts = [count for count, text in texts.items() if "<｜DSML｜ calls>" in text]
    assert len(cuts) > 20
    for cut in cuts:
        found = parse_whole(tokenizer, prompt, answer[:cut], True)
        assert (found.reasoning, found.content.strip()) == ("I look.", "")
        # Within the name vLLM returns what there is of it, its closing quote included.
        if 'get_weather">' in texts[cut]:
            [(name, read)] = found.calls
            assert name == "get_weather"
            assert set(read) <= set(arguments)
