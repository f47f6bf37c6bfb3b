"""Bad settings and wrong ballots are refused by name, on every rank at the same step.

If this breaks, ranks decide from nonsense: some wait in a collective that others never enter.
"""

from __future__ import annotations

import math

import pytest

from vllm_deepinfer.scheduler.vote import Ballot, Phase, Vote, VoteError, VoteSettings


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("mode", "sometimes", "'cadence', 'slo'"),
        ("all_interval", 0, "at least 1"),
        ("any_interval", -1, "at least 1"),
        ("any_interval", 2.0, "an integer"),
        ("max_prefill_steps", 0, "at least 1"),
        ("max_prefill_steps", True, "an integer"),
        ("ballot_interval", 0, "at least 1"),
        ("resume_interval", -1, "at least 0"),
        ("idle_interval", "8", "an integer"),
        ("ttft_target_ms", 0.0, "positive and finite"),
        ("ttft_target_ms", math.nan, "positive and finite"),
        ("itl_target_ms", math.inf, "positive and finite"),
        ("itl_target_ms", "50", "a number"),
        ("itl_target_ms", None, "a number"),
    ],
)
def test_a_bad_setting_is_named_with_its_value(name, value, allowed):
    with pytest.raises(VoteError) as refusal:
        VoteSettings(**{name: value})
    assert name in str(refusal.value)
    assert repr(value) in str(refusal.value)
    assert allowed in str(refusal.value)


@pytest.mark.parametrize("num_ranks", [0, -2, 2.0, True])
def test_a_bad_number_of_ranks_is_named(num_ranks):
    with pytest.raises(VoteError, match=f"num_ranks is {num_ranks}"):
        Vote(VoteSettings(), num_ranks)


@pytest.mark.parametrize("name", Ballot._fields)
def test_a_ballot_out_of_range_is_named_with_its_rank_and_changes_nothing(name):
    vote = Vote(VoteSettings(), 2)
    wrong = Ballot(prefilled_tokens=5)._replace(**{name: -1})
    with pytest.raises(VoteError, match=f"{name} in the ballot of rank 1 is -1"):
        vote.advance([Ballot(), wrong])
    assert (vote.phase, vote.decode_steps, vote.needs_ballots()) == (Phase.PREFILL, 0, True)


@pytest.mark.parametrize("name", ["wants_prefill", "has_decodes", "is_mid_prompt"])
def test_a_flag_is_0_or_1(name):
    with pytest.raises(VoteError, match=f"{name} in the ballot of rank 0 is 2; allowed: 0 or 1"):
        Vote(VoteSettings(), 1).advance([Ballot(**{name: 2})])


def test_ballots_come_from_every_rank():
    with pytest.raises(VoteError, match="3 ballots for 2 ranks"):
        Vote(VoteSettings(), 2).advance([Ballot()] * 3)


def test_ballots_come_when_they_are_due_and_not_else():
    vote = Vote(VoteSettings(), 2)
    with pytest.raises(VoteError, match="are due"):
        vote.advance(None)
    vote.advance([Ballot(prefilled_tokens=1)] * 2)
    assert not vote.needs_ballots()
    with pytest.raises(VoteError, match="are not due after 0 decode steps"):
        vote.advance([Ballot()] * 2)
