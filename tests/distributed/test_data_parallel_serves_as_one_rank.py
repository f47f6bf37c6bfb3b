"""Two ranks with experts spread over them answer every request as one rank alone does.

Claim: one `vllm serve --data-parallel-size 2 --enable-expert-parallel` with drafting, in
batch-invariant mode, gives the tokens of an engine without any of it: for requests alone while the
other rank idles, for a mixed load on both, and for those that others leave midway. So does one
whose ranks vote on prefill or decode and verify as many drafts as pay. Both ranks serve and count.
The first server has a container's /dev/shm, and results that are larger than a chunk of its rings
arrive whole. A server whose ranks hold all experts each gives the same tokens, too.
When a rank's worker is killed, clients get errors and the server ends. If this breaks, a rank takes
part in too few or too many collectives, tokens reach the wrong expert, or ranks run steps of unlike
kinds.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import time
from pathlib import Path

import openai
import pytest
from container_support import as_in_a_container, assert_in_a_container
from in_process import engine
from serving_support import (
    MODEL,
    REQUEST_TIMEOUT_S,
    START_TIMEOUT_S,
    VOCAB_SIZE,
    Metrics,
    launch,
)

NUM_DRAFTS = 5
LIMITS = ["--max-model-len", "1024", "--max-num-seqs", "16", "--max-logprobs", "-1"]
RANKS = ["--data-parallel-size", "2"]
END_TIMEOUT_S = 120.0


def random_requests():
    """Prompts of several lengths, greedy and seeded, with few tokens and many."""
    choice = random.Random(7)
    lengths = [1, 2, 3, 5, 8, 13, 30, 70, 2, 4, 6, 40]
    return [
        {
            "prompt": [choice.randrange(3, 500) for _ in range(length)],
            "max_tokens": choice.choice((1, 4, 12, 24)),
            "temperature": number % 2,
            "seed": number,
        }
        for number, length in enumerate(lengths)
    ]


REQUESTS = random_requests()
LONG_PROMPT = [3 + 7 * n % 500 for n in range(400)]


def start(folder, log, wrapper, *arguments):
    arguments = ["--served-model-name", MODEL, *LIMITS, *RANKS, *arguments]
    running = launch(folder, arguments, log, wrapper)
    try:
        running.wait_until_ready(START_TIMEOUT_S)
    except BaseException:
        running.stop()
        raise
    return running


def start_with(folder, log, wrapper=(), spread=True, **options):
    drafting = f'{{"method":"dspark","num_speculative_tokens":{NUM_DRAFTS}}}'
    deepinfer = json.dumps({"deepinfer": {"batch_invariant": True, **options}})
    return start(
        folder,
        log,
        wrapper,
        *(["--enable-expert-parallel"] if spread else []),
        *("--speculative-config", drafting, "--additional-config", deepinfer),
    )


@pytest.fixture(scope="module")
def server(tiny_folder, tmp_path_factory):
    log = tmp_path_factory.mktemp("ranks") / "server.log"
    running = start_with(tiny_folder, log, as_in_a_container())
    yield running
    running.stop()
    assert running.processes() == []


@pytest.fixture
def voting_server(tiny_folder, tmp_path):
    """Ranks that vote by short intervals, and write down every step."""
    running = start_with(
        tiny_folder,
        tmp_path / "server.log",
        prefill_vote="cadence",
        prefill_all_interval=7,
        prefill_any_interval=10,
        verification="adaptive",
        step_trace=str(tmp_path / "steps"),
    )
    yield running
    running.stop()
    assert running.processes() == []


@pytest.fixture
def server_of_whole_ranks(tiny_folder, tmp_path):
    """Each rank holds all experts."""
    running = start_with(tiny_folder, tmp_path / "server.log", spread=False)
    yield running
    running.stop()
    assert running.processes() == []


@pytest.fixture(scope="module")
def one_rank(tiny_folder):
    """What one rank answers without drafting: tokens of all requests, and a long prompt's rows."""
    from vllm import SamplingParams, TokensPrompt

    options = {"additional_config": {"deepinfer": {"batch_invariant": True}}, "max_logprobs": -1}
    with engine(tiny_folder, **options) as llm:
        prompts = [TokensPrompt(prompt_token_ids=r["prompt"]) for r in REQUESTS]
        params = [
            SamplingParams(ignore_eos=True, **{k: v for k, v in r.items() if k != "prompt"})
            for r in REQUESTS
        ]
        outputs = llm.generate(prompts, params, use_tqdm=False)
        params = SamplingParams(max_tokens=1, prompt_logprobs=-1)
        [long] = llm.generate(TokensPrompt(prompt_token_ids=LONG_PROMPT), params, use_tqdm=False)
    tokens = [list(output.outputs[0].token_ids) for output in outputs]
    rows = [{t: row[t].logprob for t in sorted(row)} for row in long.prompt_logprobs[1:]]
    return tokens, rows


@pytest.fixture(scope="module")
def expected(one_rank):
    """The tokens of every request on one rank, without drafting."""
    return one_rank[0]


def client_of(server):
    return openai.AsyncOpenAI(
        base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=REQUEST_TIMEOUT_S
    )


async def tokens_of(client, request):
    options = {"ignore_eos": True, "return_token_ids": True}
    answer = await client.completions.create(model=MODEL, extra_body=options, **request)
    return answer.choices[0].token_ids


async def leave_midway(client, prompt):
    stream = await client.completions.create(
        model=MODEL, prompt=prompt, max_tokens=900, stream=True, extra_body={"ignore_eos": True}
    )
    async for _ in stream:
        break
    await stream.close()


def test_a_request_alone(server, expected):
    """The other rank only joins; twice, since the first token wakes both ranks."""

    async def run():
        client = client_of(server)
        for number in (3, 6):
            assert await tokens_of(client, REQUESTS[number]) == expected[number]

    asyncio.run(run())


async def answers_to_a_mixed_load(server):
    """Tokens of all requests, which come one after another while others leave midway."""
    client = client_of(server)

    async def at(delay_s, request):
        await asyncio.sleep(delay_s)
        return await tokens_of(client, request)

    leaving = [leave_midway(client, [9 + n, 10]) for n in range(4)]
    coming = [at(0.1 * n, request) for n, request in enumerate(REQUESTS)]
    found, _ = await asyncio.gather(asyncio.gather(*coming), asyncio.gather(*leaving))
    return found


def test_results_larger_than_a_chunk_arrive_whole(server, one_rank):
    """Log-probabilities of all tokens at 400 positions: 2.4 MiB through chunks of 1."""
    assert_in_a_container(server)

    async def run():
        options = {"prompt_logprobs": -1}
        request = {"prompt": LONG_PROMPT, "max_tokens": 1, "temperature": 0}
        answer = await client_of(server).completions.create(
            model=MODEL, extra_body=options, **request
        )
        return answer.choices[0].prompt_logprobs

    found = asyncio.run(run())
    assert found[0] is None
    rows = [{int(t): entry["logprob"] for t, entry in row.items()} for row in found[1:]]
    assert all(len(row) == VOCAB_SIZE for row in rows)
    assert rows == one_rank[1]


def test_a_mixed_load(server, expected):
    assert asyncio.run(answers_to_a_mixed_load(server)) == expected


def test_ranks_that_hold_everything(server_of_whole_ranks, expected):
    assert asyncio.run(answers_to_a_mixed_load(server_of_whole_ranks)) == expected
    by_engine = Metrics(server_of_whole_ranks.url).by_engine("vllm:generation_tokens_total")
    assert set(by_engine) == {"0", "1"} and min(by_engine.values()) > 0


def test_ranks_that_vote_take_every_step_alike(voting_server, expected, tmp_path):
    """Twice, so that a wave ends and another begins."""
    for _ in range(2):
        assert asyncio.run(answers_to_a_mixed_load(voting_server)) == expected
        Metrics(voting_server.url).wait_until_idle()
    steps = [json_lines(tmp_path / name) for name in ("steps", "steps.1")]
    first, second = ({step["round"]: step["voted"] for step in found} for found in steps)
    together = first.keys() & second.keys()
    assert len(together) > 10
    assert {first[number] for number in together} == {"prefill", "decode"}
    assert all(first[number] == second[number] for number in together)
    for step in steps[0] + steps[1]:
        # In a decode step, only a prompt whose prefix is cached up to its last token.
        is_prompt = step["prompt_tokens"] > NUM_DRAFTS + 1
        assert step["voted"] == "prefill" or not is_prompt, step
    drafts = {step["drafts"] / step["sequences"] for step in steps[0] if step["voted"] == "decode"}
    assert len(drafts) > 2


def json_lines(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_both_ranks_served_and_counted(server, expected):
    metrics = Metrics(server.url)
    metrics.wait_until_idle()
    for name in ("vllm:generation_tokens_total", "vllm_deepinfer_draft_offered_total"):
        by_engine = metrics.by_engine(name)
        assert set(by_engine) == {"0", "1"}, name
        assert min(by_engine.values()) > 0, name
    offered, ours = (
        sum(metrics.by_engine(name).values())
        for name in (
            "vllm:spec_decode_num_draft_tokens_total",
            "vllm_deepinfer_draft_offered_total",
        )
    )
    assert offered == ours


def test_ranks_compute_on_cores_of_their_own(server):
    workers = [pid for pid in server.processes() if "Worker" in title(pid)]
    assert len(workers) == 2
    if len(os.sched_getaffinity(0)) > 1:
        first, second = (os.sched_getaffinity(pid) for pid in workers)
        assert not first & second


def title(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except FileNotFoundError:
        return ""


def test_a_killed_worker_ends_the_server_with_errors(server):
    """Last here: it takes the server with it."""
    worker = next(pid for pid in server.processes() if "Worker_DP1" in title(pid))

    async def run():
        client = client_of(server)
        request = {"prompt": [5, 6, 7], "max_tokens": 900, "temperature": 0}
        running = [asyncio.create_task(tokens_of(client, request)) for _ in range(4)]
        while min(Metrics(server.url).by_engine("vllm:num_requests_running").values()) == 0:
            await asyncio.sleep(0.1)
        os.kill(worker, signal.SIGKILL)
        return await asyncio.gather(*running, return_exceptions=True)

    outcomes = asyncio.run(run())
    assert all(isinstance(outcome, openai.APIError) for outcome in outcomes), outcomes
    deadline = time.monotonic() + END_TIMEOUT_S
    while (code := server.process.poll()) is None and time.monotonic() < deadline:
        time.sleep(0.2)
    assert code not in (None, 0)
