"""Many requests at once finish, and a client that leaves takes its cache blocks with it.

An abort that races with scheduling can kill the engine for everyone or leak blocks until nothing is
admitted any more. The evidence is what counts afterwards: no request runs, the cache is empty and
the next request is answered. (vLLM's counter of aborted requests stays 0 on disconnects.)
"""

from __future__ import annotations

import asyncio
import contextlib

import openai
import pytest
from serving_support import BLOCK_SIZE_TOKENS, HELLO, MODEL, load

LONG = {"model": MODEL, "max_tokens": 1500, "extra_body": {"ignore_eos": True}}


def test_64_concurrent_chats_all_get_their_own_answer(async_client, metrics):
    before = metrics.wait_until_idle()

    async def chat(client, number: int) -> int:
        """Streams a chat that asks for a number of tokens of its own; gives the tokens counted."""
        stream = await client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": f"Question {number}: " + "why? " * (number % 8)}],
            max_tokens=4 + number % 9,
            seed=number,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"ignore_eos": True},
        )
        pieces, usage, reason = [], None, None
        async for chunk in stream:
            usage = chunk.usage or usage
            for choice in chunk.choices:
                pieces.append(getattr(choice.delta, "reasoning", None) or "")
                reason = choice.finish_reason or reason
        assert "".join(pieces) != ""
        assert reason == "length"
        return usage.completion_tokens

    async def all_at_once() -> list[int]:
        async with async_client() as client:
            return await asyncio.gather(*(chat(client, number) for number in range(64)))

    assert asyncio.run(all_at_once()) == [4 + number % 9 for number in range(64)]
    after = metrics.wait_until_idle()
    made = after["generation_tokens_total"] - before["generation_tokens_total"]
    assert made == sum(4 + number % 9 for number in range(64))


def test_a_client_that_leaves_mid_stream_frees_its_blocks(client, metrics, still_serves):
    before = metrics.wait_until_idle()
    stream = client.completions.create(prompt=[7] * (3 * BLOCK_SIZE_TOKENS), stream=True, **LONG)
    for _, _chunk in zip(range(5), stream, strict=False):
        pass
    during = metrics.wait_until(lambda found: found["num_requests_running"] == 1, "its start")
    assert during["kv_cache_usage_perc"] > 0
    stream.close()
    after = metrics.wait_until_idle()
    made = after["generation_tokens_total"] - before["generation_tokens_total"]
    assert 5 <= made < LONG["max_tokens"], "it ended early"


def test_a_client_that_stops_waiting_frees_its_blocks(client, metrics, still_serves):
    """Not a stream: nothing was sent yet when the connection closes."""
    metrics.wait_until_idle()
    with pytest.raises(openai.APITimeoutError):
        client.with_options(timeout=1.0).completions.create(prompt=[7] * 40, **LONG)
    metrics.wait_until_idle()


def test_leaving_at_any_moment_harms_nobody_else(async_client, metrics, still_serves):
    metrics.wait_until_idle()

    async def read(client, number: int, num_chunks: int) -> None:
        stream = await client.completions.create(prompt=[8 + number] * 500, stream=True, **LONG)
        async for _chunk in stream:
            num_chunks -= 1
            if num_chunks == 0:
                return await stream.close()

    async def leave(client, number: int) -> None:
        """After some chunks, or after some time: then the first are still in their prompt."""
        if number % 2:
            await read(client, number, num_chunks=number)
        else:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(read(client, number, num_chunks=10_000), 0.1 + 0.2 * number)

    async def stay(client, number: int) -> int:
        answer = await client.chat.completions.create(
            model=MODEL, messages=HELLO, max_tokens=20 + number, extra_body={"ignore_eos": True}
        )
        return answer.usage.completion_tokens

    async def all_at_once() -> list[int]:
        async with async_client() as client:
            leavers = [leave(client, number) for number in range(10)]
            stayers = [stay(client, number) for number in range(10)]
            _, answers = await asyncio.gather(asyncio.gather(*leavers), asyncio.gather(*stayers))
            return answers

    assert asyncio.run(all_at_once()) == [20 + number for number in range(10)]
    assert not any(load(metrics.wait_until_idle()).values())
