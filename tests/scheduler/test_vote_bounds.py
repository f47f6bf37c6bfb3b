"""Ranks that vote agree in every step, and neither prompts nor decodes wait beyond stated bounds.

Claim, over random traffic on 2 to 8 ranks in both modes, ranks that overrate their room included:
a rank with room waits at most `any_interval` decode steps; a prompt does not crawl in chunks; one
grant takes at most `max_prefill_steps` steps from decodes; nothing livelocks; every request ends.
If this breaks, ranks deadlock in different collectives, or some request is starved.
"""

from __future__ import annotations

import math
from collections import deque
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lockstep_ranks import Prompt, Rank, Step, run_lockstep

from vllm_deepinfer.scheduler.vote import Kind, Phase, VoteSettings

MANY_STEPS = 20_000


@st.composite
def vote_settings(draw, modes=("cadence", "slo")) -> VoteSettings:
    return VoteSettings(
        mode=draw(st.sampled_from(modes)),
        all_interval=draw(st.integers(1, 20)),
        any_interval=draw(st.integers(1, 25)),
        resume_interval=draw(st.integers(0, 8)),
        idle_interval=draw(st.integers(0, 8)),
        max_prefill_steps=draw(st.integers(1, 6)),
        ballot_interval=draw(st.integers(1, 6)),
        ttft_target_ms=draw(st.sampled_from([1.0, 40.0, 400.0])),
        itl_target_ms=draw(st.sampled_from([0.5, 1.5, 4.0])),
    )


prompts = st.builds(
    Prompt,
    arrives=st.integers(0, 120),
    prompt_tokens=st.integers(1, 80),
    output_tokens=st.integers(1, 30),
)


@st.composite
def rank_lists(draw) -> list[Rank]:
    ranks = []
    for _ in range(draw(st.integers(2, 8))):
        arrivals = sorted(
            draw(st.lists(prompts, min_size=1, max_size=5)), key=lambda prompt: prompt.arrives
        )
        max_running = draw(st.integers(1, 3))
        overrates = draw(st.booleans())
        capacity = draw(st.sampled_from([120, 400]))
        ranks.append(Rank(deque(arrivals), max_running, capacity, overrates_room=overrates))
    return ranks


class Trace:
    """A finished run of random traffic."""

    def __init__(self, ranks: list[Rank], settings: VoteSettings, is_timed: bool) -> None:
        self.settings, self.ranks = settings, ranks
        self.prompts = [prompt for rank in ranks for prompt in rank.arrivals]
        self.steps = run_lockstep(ranks, settings, MANY_STEPS, is_timed=is_timed)

    def followed(self) -> list[tuple[Step, Step]]:
        """Each step with the next of the same wave."""
        return [(a, b) for a, b in pairwise(self.steps) if a.verdict is not None]


traces = st.builds(Trace, rank_lists(), vote_settings(), st.booleans())


@settings(max_examples=100)
@given(traces)
def test_every_request_ends(trace):
    assert all(prompt.ended is not None for prompt in trace.prompts)


@settings(max_examples=100)
@given(traces)
def test_a_rank_with_room_waits_at_most_the_any_interval(trace):
    for rank in range(len(trace.ranks)):
        waited = 0
        for step in trace.steps:
            if step.phase is Phase.PREFILL or not step.wanted[rank]:
                waited = 0
                assert not step.wanted[rank] or step.prefilled_tokens[rank]
            else:
                waited += 1
            assert waited <= trace.settings.any_interval


@pytest.mark.parametrize("mode", ["cadence", "slo"])
def test_the_bound_is_reached_and_not_passed(mode):
    """One rank decodes, the prompt of the other arrives just after the last prefill."""
    decoder, newcomer = Prompt(0, 16, 300), Prompt(1, 16, 5)
    ranks = [Rank(deque([decoder])), Rank(deque([newcomer]))]
    # The inter-token target cannot be met even without prefills, so no prefill has credit.
    settings = VoteSettings(mode=mode, itl_target_ms=0.5, ttft_target_ms=1e9)
    run_lockstep(ranks, settings, 1000)
    assert newcomer.started - newcomer.arrives == settings.any_interval


@settings(max_examples=100)
@given(traces)
def test_prompts_do_not_crawl(trace):
    """n chunks take at most n + (1 + ceil(n / burst)) * gap steps from the first chunk on."""
    s = trace.settings
    can_resume = s.mode == "cadence" and s.resume_interval
    gap = min(s.resume_interval, s.any_interval) if can_resume else s.any_interval
    for prompt in trace.prompts:
        # The first chunk may get what another prompt left of its step.
        chunks = 1 + math.ceil((prompt.prompt_tokens - 1) / Rank.chunk_tokens)
        bound = chunks + (1 + math.ceil(chunks / s.max_prefill_steps)) * gap
        assert prompt.prefilled - prompt.started + 1 <= bound


@settings(max_examples=100)
@given(traces)
def test_a_grant_takes_a_bounded_number_of_steps_from_decodes(trace):
    """The exception is that every rank keeps wanting, so that no decode waits for others alone."""
    taken = 0
    for step in trace.steps:
        ballots = step.ballots
        is_at_cost = (
            step.verdict is not None
            and step.verdict.phase is Phase.PREFILL
            and any(ballot.has_decodes for ballot in ballots)
            and not all(ballot.wants_prefill for ballot in ballots)
        )
        taken = taken + 1 if is_at_cost else 0
        assert taken <= trace.settings.max_prefill_steps


@settings(max_examples=100)
@given(traces)
def test_late_prompts_leave_decodes_a_share(trace):
    for step in trace.steps:
        if step.verdict is not None and step.verdict.kind is Kind.DEADLINE:
            assert step.decode_steps >= trace.settings.ballot_interval
        if step.verdict is not None and step.verdict.kind is Kind.CREDIT and step.is_productive:
            raise AssertionError("a prefill was paid for before any decode")


@settings(max_examples=100)
@given(traces)
def test_an_empty_prefill_is_never_followed_by_another_while_a_rank_decodes(trace):
    for step, following in trace.followed():
        if step.phase is Phase.PREFILL and not step.is_productive and any(following.had_decodes):
            assert following.phase is Phase.DECODE


@settings(max_examples=100)
@given(traces)
def test_only_a_prefill_that_computed_something_resets_the_counter(trace):
    count = 0
    for step in trace.steps:
        if step.phase is Phase.DECODE:
            count += 1
        elif step.is_productive:
            count = 0
        if step.verdict is None:
            count = 0
        assert step.decode_steps == count


@settings(max_examples=100)
@given(st.builds(Trace, rank_lists(), vote_settings(modes=["cadence"]), st.booleans()))
def test_ballots_travel_at_the_agreed_points_only(trace):
    s = trace.settings
    was_mid_prompt = False
    for step in trace.steps:
        if step.verdict is None:
            was_mid_prompt = False
            continue
        intervals = [s.all_interval, s.any_interval, s.idle_interval]
        intervals.append(s.resume_interval if was_mid_prompt else 0)
        is_point = any(each and step.decode_steps % each == 0 for each in intervals)
        is_point |= step.decode_steps == s.resume_interval > 0  # the first ALL point
        assert (step.ballots is not None) == (step.phase is Phase.PREFILL or is_point)
        if step.is_productive:
            was_mid_prompt = any(ballot.is_mid_prompt for ballot in step.ballots)


def test_a_full_rank_with_a_queue_does_not_stop_decodes():
    """Running is full, waiting is not, and the rank overrates its room at every point."""
    running = [Prompt(0, 8, 150) for _ in range(2)]
    ranks = [
        Rank(deque([*running, Prompt(0, 8, 5)]), max_running=2, overrates_room=True),
        Rank(deque([Prompt(0, 8, 150)])),
    ]
    settings = VoteSettings(all_interval=1, any_interval=1, resume_interval=1, idle_interval=1)
    steps = run_lockstep(ranks, settings, MANY_STEPS)
    assert [prompt.outputs_left for prompt in running] == [0, 0]
    assert len(steps) < 350


def test_a_lone_long_prompt_on_idle_ranks_runs_without_a_break():
    prompt = Prompt(0, 20 * Rank.chunk_tokens, 1)
    ranks = [Rank(deque([prompt])), Rank(deque())]
    run_lockstep(ranks, VoteSettings(), 1000)
    assert (prompt.started, prompt.prefilled) == (0, 19)
