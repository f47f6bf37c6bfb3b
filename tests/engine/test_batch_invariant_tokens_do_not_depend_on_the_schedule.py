"""With ``batch_invariant`` a request's tokens are its own: batch, chunks and caches change nothing.

Every comparison is of greedy tokens and of their log-probabilities bit for bit, through the real
engine. If one fails, a cache row was read before it was written, written to another place than it
is read from, or computed in a way that depends on its neighbours. Prompts of 210 to 300 tokens, so
that the window slides, the top-k selection bites and the candidate filter drops blocks.
"""

from __future__ import annotations

import multiprocessing
from multiprocessing.context import SpawnProcess

import numpy as np
import pytest
from in_process import (
    counter,
    engine,
    forget_prefixes,
    run,
    scheduler,
    set_step_tokens,
)
from vllm import envs

from vllm_deepinfer.platforms import cpu

NUM_TOKENS = 8
OPTIONS = {"additional_config": {"deepinfer": {"batch_invariant": True}}}
RNG = np.random.default_rng(3)
PROMPT = RNG.integers(3, 500, 300).tolist()
STRANGERS = [RNG.integers(3, 500, length).tolist() for length in (1, 2, 63, 129, 130, 17, 210)]


@pytest.fixture(scope="module")
def llm(tiny_folder):
    with engine(tiny_folder, **OPTIONS) as llm:
        yield llm


@pytest.fixture(scope="module")
def expected(llm):
    """Tokens after one prefill of the whole prompt, alone."""
    return run(llm, [PROMPT], NUM_TOKENS)[0]


def record_steps(llm, monkeypatch) -> list[int]:
    """Tokens computed in each step from now on."""
    target, computed = scheduler(llm), []
    original = target.schedule

    def schedule(*args, **kwargs):
        output = original(*args, **kwargs)
        computed.append(output.total_num_scheduled_tokens)
        return output

    monkeypatch.setattr(target, "schedule", schedule)
    return computed


@pytest.fixture(autouse=True)
def clean(llm):
    forget_prefixes(llm)
    yield
    set_step_tokens(llm, 512)


@pytest.mark.parametrize("chunk", [1, 7, 64, 128])
def test_chunk_size_changes_nothing(llm, expected, chunk, monkeypatch):
    set_step_tokens(llm, chunk)
    computed = record_steps(llm, monkeypatch)
    assert run(llm, [PROMPT], NUM_TOKENS) == [expected]
    assert computed[: len(PROMPT) // chunk] == [chunk] * (len(PROMPT) // chunk)


def test_prefix_cache_hit_changes_nothing(llm, expected):
    run(llm, [PROMPT], 1)
    before = counter(llm, "vllm:prefix_cache_hits")
    assert run(llm, [PROMPT], NUM_TOKENS) == [expected]
    assert counter(llm, "vllm:prefix_cache_hits") - before == 256


def test_strangers_in_the_batch_change_nothing(llm, expected):
    assert run(llm, [*STRANGERS, PROMPT], NUM_TOKENS)[-1] == expected


def test_strangers_in_mixed_steps_change_nothing(llm, expected):
    set_step_tokens(llm, 50)
    assert run(llm, [PROMPT, *STRANGERS], NUM_TOKENS)[0] == expected


def test_prefill_of_generated_tokens_continues_as_their_decode_did(llm, expected):
    tokens, logprobs = expected
    half = NUM_TOKENS // 2
    continued = run(llm, [PROMPT + list(tokens[:half])], NUM_TOKENS - half)
    assert continued == [(tokens[half:], logprobs[half:])]


def test_preemption_changes_nothing(llm, expected, monkeypatch):
    """One running request is preempted in the middle of its decode and resumes by recomputing."""
    target = scheduler(llm)
    original, steps = target.schedule, []

    def schedule(*args, **kwargs):
        steps.append(None)
        if len(steps) == 4:
            request = target.running.pop()
            target._preempt_request(request, 0.0)
        return original(*args, **kwargs)

    monkeypatch.setattr(target, "schedule", schedule)
    before = counter(llm, "vllm:num_preemptions")
    assert run(llm, [PROMPT], NUM_TOKENS) == [expected]
    assert counter(llm, "vllm:num_preemptions") - before == 1


# An engine that is shut down takes the process groups of its process with it: from here on, the
# module's engine computes nothing more.


def test_preemption_for_want_of_blocks_changes_nothing(llm, tiny_folder):
    """A pool too small for all requests preempts some; each still answers as it does alone."""
    prompts = [RNG.integers(3, 500, length).tolist() for length in (120, 125, 120, 126)]
    alone = [run(llm, [prompt], 3 * NUM_TOKENS)[0] for prompt in prompts]
    with engine(tiny_folder, max_model_len=256, num_gpu_blocks_override=36, **OPTIONS) as tight:
        assert run(tight, prompts, 3 * NUM_TOKENS) == alone
        assert counter(tight, "vllm:num_preemptions") > 0


@pytest.fixture
def spawned_workers(llm, monkeypatch):
    """As if VLLM_WORKER_MULTIPROC_METHOD=spawn had been there before vLLM was imported."""
    monkeypatch.setenv("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
    monkeypatch.setattr(cpu, "_USER_START_METHOD", "spawn")
    envs.disable_envs_cache()  # the first engine of a process has filled it
    yield
    envs.disable_envs_cache()


def test_synchronous_steps_of_a_spawned_worker_change_nothing(
    llm, expected, tiny_folder, spawned_workers
):
    """A spawned worker inherits no module: it imports the model while vLLM loads it.

    Forked workers: all tests of the server.
    """
    assert llm.llm_engine.vllm_config.scheduler_config.async_scheduling
    other = {"async_scheduling": False, "distributed_executor_backend": "mp", **OPTIONS}
    others = set(multiprocessing.active_children())  # of tests that ran in this process before
    with engine(tiny_folder, **other) as synchronous:
        workers = set(multiprocessing.active_children()) - others
        assert [type(worker) for worker in workers] == [SpawnProcess]
        assert run(synchronous, [PROMPT], NUM_TOKENS) == [expected]
