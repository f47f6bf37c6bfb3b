"""A rank that is alone and has no prompt decides without a ballot as it would with one.

If this fails, a single rank's prefills come at other steps than the vote's rules say.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_deepinfer.scheduler.vote import Ballot, Phase, Vote, VoteError, VoteSettings

ballots = st.builds(
    Ballot,
    wants_prefill=st.integers(0, 1),
    has_decodes=st.integers(0, 1),
    is_mid_prompt=st.integers(0, 1),
    prefill_steps=st.integers(1, 4),
    prefilled_tokens=st.integers(0, 1),
    oldest_wait_ms=st.integers(0, 3000),
    decode_step_us=st.integers(0, 20000),
    prefill_step_us=st.integers(0, 90000),
)


@given(st.lists(ballots, max_size=60), st.sampled_from(("cadence", "slo")), st.integers(0, 3))
def test_the_state_is_that_after_a_ballot_without_a_wish(taken, mode, resume_interval):
    settings = VoteSettings(
        mode=mode, all_interval=5, any_interval=7, resume_interval=resume_interval
    )
    plain, quick = Vote(settings, 1), Vote(settings, 1)
    for ballot in taken:
        before = plain.phase
        verdict = plain.advance([ballot])
        if before is Phase.DECODE and not ballot.wants_prefill:
            assert quick.decode_on()[:2] == verdict[:2]
        else:
            assert quick.advance([ballot]) == verdict
        assert vars(plain) == vars(quick)


def test_it_is_refused_where_a_ballot_is_due():
    with pytest.raises(VoteError, match="1 ranks go on after a prefill step"):
        Vote(VoteSettings(), 1).decode_on()
    with pytest.raises(VoteError, match="2 ranks"):
        Vote(VoteSettings(), 2).decode_on()
