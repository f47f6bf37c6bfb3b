"""In compatible settings the vote takes DeepInfer's branches, step for step.

Claim: an independent model of its rule, both of its collectives included, gives the same branches
and the same points on random scripts. Two differences are deliberate and part of the comparison:
a prefill that nobody can fill is found out by running it, not by a second collective, and then a
decode follows; and the first step of a wave is a prefill without a vote.
If this breaks, the compatible settings are a name only.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_deepinfer.scheduler.vote import Ballot, Kind, Phase, Vote, VoteSettings

COMPATIBLE = VoteSettings.compatible()

# What a rank is at one step: nothing to prefill; something, but no room; something with room.
IDLE, BLOCKED, ABLE = 0, 1, 2


def all_reduce_min(values: list[int]) -> int:
    return min(values)


def model_of_deepinfer(
    script: list[list[int]], all_interval: int = 70, any_interval: int = 100
) -> list[tuple[str, bool]]:
    """(branch, whether ranks communicated) of each step of `script`, all ranks together."""
    trace, decode_step = [], 0
    for states in script:
        any_point = decode_step != 0 and decode_step % any_interval == 0
        all_point = decode_step % all_interval == 0
        takes_prefill = False
        if any_point or all_point:
            wants = [state != IDLE for state in states]
            if any_point:
                agreed = all_reduce_min([0 if want else 1 for want in wants]) == 0
            else:
                agreed = all_reduce_min([1 if want else 0 for want in wants]) == 1
            if agreed:
                got = [0 if state == ABLE else 1 for state in states]
                takes_prefill = all_reduce_min(got) == 0
        decode_step = 0 if takes_prefill else decode_step + 1
        trace.append(("prefill" if takes_prefill else "decode", any_point or all_point))
    return trace


def ballots_of(states: list[int], prefilled: list[int]) -> list[Ballot]:
    return [
        Ballot(
            wants_prefill=int(state != IDLE),
            has_decodes=1,
            prefill_steps=5 if state != IDLE else 0,
            prefilled_tokens=tokens,
        )
        for state, tokens in zip(states, prefilled, strict=True)
    ]


def trace_of_vote(script: list[list[int]], vote: Vote) -> list[tuple[str, bool]]:
    """The same of our vote; a prefill that stays empty belongs to the decode after it."""
    trace, took_ballots, position = [], True, 0
    while position < len(script):
        prefilled = [int(state == ABLE) for state in script[position]]
        if vote.phase is Phase.DECODE:
            trace.append(("decode", took_ballots))
            position, prefilled = position + 1, [0] * len(prefilled)
        elif any(prefilled):
            trace.append(("prefill", took_ballots))
            position += 1
        was_empty = vote.phase is Phase.PREFILL and not any(prefilled)
        states = script[min(position, len(script) - 1)]
        verdict = vote.advance(ballots_of(states, prefilled) if vote.needs_ballots() else None)
        if was_empty:
            assert verdict.phase is Phase.DECODE
            took_ballots = True
        else:
            took_ballots = verdict.took_ballots
    return trace


@st.composite
def scripts(draw) -> list[list[int]]:
    """Runs of equal states, so that long intervals are crossed. A wave begins alike everywhere."""
    num_ranks = draw(st.integers(2, 5))
    first = [draw(st.sampled_from([IDLE, ABLE]))] * num_ranks
    script = [first]
    for _ in range(draw(st.integers(1, 12))):
        states = draw(st.lists(st.integers(0, 2), min_size=num_ranks, max_size=num_ranks))
        script += [states] * draw(st.integers(1, 60))
    return script


@settings(max_examples=200)
@given(scripts())
def test_branches_and_points_are_deepinfers(script):
    assert trace_of_vote(script, Vote(COMPATIBLE, len(script[0]))) == model_of_deepinfer(script)


@settings(max_examples=200)
@given(scripts(), st.integers(2, 12), st.integers(2, 12))
def test_branches_are_deepinfers_at_any_interval(script, all_interval, any_interval):
    chosen = VoteSettings(
        all_interval=all_interval,
        any_interval=any_interval,
        resume_interval=0,
        idle_interval=0,
        max_prefill_steps=1,
    )
    expected = model_of_deepinfer(script, all_interval, any_interval)
    assert trace_of_vote(script, Vote(chosen, len(script[0]))) == expected


def after_decodes(num_steps: int, states: list[int]) -> Kind | None:
    """Why a prefill is granted after so many decode steps without one, given these states then."""
    vote = Vote(COMPATIBLE, len(states))
    vote.advance(ballots_of([IDLE] * len(states), [1] * len(states)))
    for _ in range(num_steps - 1):
        quiet = ballots_of([IDLE] * len(states), [0] * len(states))
        vote.advance(quiet if vote.needs_ballots() else None)
    if not vote.needs_ballots():
        return None
    return vote.advance(ballots_of(states, [0] * len(states))).kind


def test_vote_points_are_at_70_and_100_and_any_wins_where_they_meet():
    everybody = {n: kind for n in range(1, 701) if (kind := after_decodes(n, [ABLE, ABLE]))}
    expected = dict.fromkeys(range(70, 701, 70), Kind.ALL)
    expected.update(dict.fromkeys(range(100, 701, 100), Kind.ANY))
    assert everybody == expected
    somebody = [n for n in range(1, 701) if after_decodes(n, [IDLE, ABLE])]
    assert somebody == list(range(100, 701, 100))


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_right_after_a_prefill_only_all_ranks_together_go_on(num_ranks):
    for states, phase in (
        ([ABLE] * num_ranks, Phase.PREFILL),
        ([IDLE] + [ABLE] * (num_ranks - 1), Phase.DECODE),
    ):
        vote = Vote(COMPATIBLE, num_ranks)
        assert vote.advance(ballots_of(states, [1] * num_ranks)).phase is phase


def test_a_lone_rank_from_a_cold_start_waits_for_100_every_time():
    """Two ranks, one with prompts: 0 fails, 70 fails, 100 succeeds, and so on from there."""
    script = [[IDLE, IDLE]] + [[IDLE, ABLE]] * 402
    trace = trace_of_vote(script, Vote(COMPATIBLE, 2))
    assert trace == model_of_deepinfer(script)
    assert [n for n, (branch, _) in enumerate(trace) if branch == "prefill"] == [100, 201, 302]
