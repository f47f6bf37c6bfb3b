"""Two data-parallel ranks on two npus, with the experts spread over them, answer as one CPU does.

So they do over both endpoints, whole and streamed. If this fails, ranks take one another's device,
tokens reach the wrong expert over "hccl", or a rank that idles does not join the collectives that
the other's graphs repeat.
"""

from __future__ import annotations

import asyncio
import json

import anthropic
import npu_engines
import openai
import pytest
from in_process import engine, run
from serving_support import HELLO, MODEL, REQUEST_TIMEOUT_S, START_TIMEOUT_S, Metrics, launch

NUM_TOKENS = 24


@pytest.fixture(scope="module")
def replays(tmp_path_factory):
    return tmp_path_factory.mktemp("replays")


@pytest.fixture(scope="module")
def server(fake_npu_library, tiny_folder, replays, tmp_path_factory):
    changes = npu_engines.environment(FAKE_NPU_DEVICES="2", FAKE_NPU_REPLAYS=str(replays))
    arguments = [
        *("--served-model-name", MODEL, "--max-model-len", "1024", "--api-server-count", "1"),
        *("--max-num-seqs", "4", "--max-num-batched-tokens", "256"),
        *("--data-parallel-size", "2", "--enable-expert-parallel"),
        *("--speculative-config", json.dumps(npu_engines.DRAFTING)),
        *("--additional-config", json.dumps({"deepinfer": {"sync_guard": "error"}})),
    ]
    with pytest.MonkeyPatch.context() as environment:
        for name, value in changes.items():
            environment.setenv(name, value)
        log = tmp_path_factory.mktemp("ranks") / "server.log"
        running = launch(tiny_folder, arguments, log)
    try:
        running.wait_until_ready(START_TIMEOUT_S)
        yield running
    finally:
        running.stop()
    assert running.processes() == []


@pytest.fixture(scope="module")
def expected(tiny_folder):
    with engine(tiny_folder, **npu_engines.SETTINGS) as llm:
        return [list(tokens) for tokens, _ in run(llm, npu_engines.prompts(), NUM_TOKENS)]


async def tokens_of(client, prompt):
    answer = await client.completions.create(
        model=MODEL,
        prompt=prompt,
        max_tokens=NUM_TOKENS,
        temperature=0,
        extra_body={"ignore_eos": True, "return_token_ids": True},
    )
    return answer.choices[0].token_ids


CHAT = {"model": MODEL, "messages": HELLO, "max_tokens": 16}
GREEDY = {"temperature": 0.0, "ignore_eos": True}


@pytest.fixture(scope="module")
def chat(tiny_folder):
    """What one CPU answers to a chat: its tokens as text."""
    from vllm import SamplingParams

    with engine(tiny_folder, **npu_engines.SETTINGS) as llm:
        params = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
        [answer] = llm.chat(HELLO, params, use_tqdm=False)
        return answer.outputs[0].text


def test_a_chat_is_answered_whole_and_streamed(server, chat):
    client = openai.OpenAI(
        base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=REQUEST_TIMEOUT_S
    )
    body = {"extra_body": GREEDY}
    whole = client.chat.completions.create(**CHAT, **body)
    assert whole.choices[0].message.content == chat
    assert whole.usage.completion_tokens == 16
    stream = client.chat.completions.create(**CHAT, **body, stream=True)
    pieces = [chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices]
    assert "".join(pieces) == chat
    assert sum(map(bool, pieces)) > 1, "it came in pieces"


def test_a_message_is_answered_whole_and_streamed(server, chat):
    client = anthropic.Anthropic(
        base_url=server.url, api_key="none", max_retries=0, timeout=REQUEST_TIMEOUT_S
    )
    whole = client.messages.create(**CHAT, extra_body=GREEDY)
    assert whole.content[0].text == chat and whole.usage.output_tokens == 16
    with client.messages.stream(**CHAT, extra_body=GREEDY) as stream:
        names = [event.type for event in stream]
        assert stream.get_final_message().content[0].text == chat
    assert names.count("content_block_delta") > 1, "it came in pieces"


def test_ranks_answer_as_one_cpu(server, replays, expected):
    """One request first, for which the other rank only joins; then all at once."""

    async def ask():
        client = openai.AsyncOpenAI(
            base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=REQUEST_TIMEOUT_S
        )
        alone = await tokens_of(client, npu_engines.prompts()[1])
        return alone, await asyncio.gather(
            *(tokens_of(client, prompt) for prompt in npu_engines.prompts())
        )

    alone, together = asyncio.run(ask())
    assert alone == expected[1]
    assert list(together) == expected
    served = Metrics(server.url).by_engine("vllm:generation_tokens_total")
    assert set(served) == {"0", "1"} and min(served.values()) > 0
    # Both devices replayed, each for its own rank.
    sizes = {file.name: file.stat().st_size for file in replays.iterdir()}
    assert set(sizes) == {"npu0", "npu1"} and min(sizes.values()) > 5, sizes
