"""Under a steady load, near capacity and above it, voting by targets settles and stays there.

A policy that reacts to its own effect swings: prefills pile up decodes, the decodes hold back the
next prefills, and throughput falls by a fifth or more. Here throughput is compared between windows
of time, and the load above capacity with the load at it.
"""

from __future__ import annotations

from collections import deque

import pytest
from lockstep_ranks import Prompt, Rank, Step, run_lockstep

from vllm_deepinfer.scheduler.vote import Phase, VoteSettings

DECODE_MS, PREFILL_MS = 1.0, 10.0
NUM_STEPS, WINDOW_STEPS, WARM_UP_STEPS = 6000, 500, 2000
NUM_RANKS, NUM_CHUNKS, OUTPUT_TOKENS = 4, 4, 200
SETTINGS = VoteSettings(mode="slo", itl_target_ms=3.0, ttft_target_ms=400.0)

# Milliseconds between prompts of one rank. With 24 places a rank can just serve one every 50 ms.
LIGHT, NEAR_CAPACITY, AT_CAPACITY, OVERLOADED = 300, 60, 50, 30


def run(every_ms: int) -> list[Step]:
    ranks = []
    for rank in range(NUM_RANKS):
        first = rank * every_ms / NUM_RANKS
        prompts = [
            Prompt(int(first + number * every_ms), NUM_CHUNKS * Rank.chunk_tokens, OUTPUT_TOKENS)
            for number in range(int(NUM_STEPS * PREFILL_MS / every_ms))
        ]
        ranks.append(Rank(deque(prompts), max_running=24, capacity_tokens=10**6))
    return run_lockstep(
        ranks,
        SETTINGS,
        NUM_STEPS,
        decode_us=int(DECODE_MS * 1000),
        prefill_us=int(PREFILL_MS * 1000),
        arrives_in_ms=True,
    )


def duration_ms(steps: list[Step]) -> float:
    return sum(DECODE_MS if step.phase is Phase.DECODE else PREFILL_MS for step in steps)


def windows(steps: list[Step]) -> list[float]:
    """Prompt tokens per millisecond in each window after the warm-up."""
    rates = []
    for start in range(WARM_UP_STEPS, len(steps) - WINDOW_STEPS + 1, WINDOW_STEPS):
        window = steps[start : start + WINDOW_STEPS]
        rates.append(sum(sum(step.prefilled_tokens) for step in window) / duration_ms(window))
    return rates


def mean_itl_ms(steps: list[Step]) -> float:
    num_decodes = sum(step.phase is Phase.DECODE for step in steps)
    return duration_ms(steps) / num_decodes


@pytest.mark.parametrize("every_ms", [LIGHT, NEAR_CAPACITY, AT_CAPACITY, OVERLOADED])
def test_throughput_does_not_swing(every_ms):
    rates = windows(run(every_ms))
    assert min(rates) >= 0.85 * max(rates)


def test_all_that_arrives_is_computed_up_to_capacity():
    for every_ms in (LIGHT, NEAR_CAPACITY, AT_CAPACITY):
        arriving = NUM_RANKS * NUM_CHUNKS * Rank.chunk_tokens / every_ms
        rates = windows(run(every_ms))
        assert sum(rates) / len(rates) == pytest.approx(arriving, rel=0.03)


def test_overload_does_not_lower_throughput():
    at_capacity, overloaded = windows(run(AT_CAPACITY)), windows(run(OVERLOADED))
    assert sum(overloaded) / len(overloaded) >= 0.95 * sum(at_capacity) / len(at_capacity)


def test_the_inter_token_target_holds_up_to_near_capacity():
    for every_ms in (LIGHT, NEAR_CAPACITY):
        assert mean_itl_ms(run(every_ms)[WARM_UP_STEPS:]) <= 1.02 * SETTINGS.itl_target_ms
