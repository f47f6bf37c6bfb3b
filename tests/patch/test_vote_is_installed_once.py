"""The patch changes vLLM's class once, reaches its subclasses, and leaves others as they were.

If this breaks, engines vote twice per step, or engines without a vote change their behaviour.
"""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest
from vllm.v1.engine.core import DPEngineCoreProc

from vllm_deepinfer.patch import dp_vote
from vllm_deepinfer.scheduler.vote import Ballot, Phase, Verdict, Vote, VoteSettings

METHODS = ("_has_global_unfinished_reqs", "_should_throttle_prefills")


@pytest.fixture
def originals(monkeypatch):
    """vLLM's methods, in place again afterwards."""
    found = {name: getattr(DPEngineCoreProc, name) for name in METHODS}
    found = {name: getattr(method, "__wrapped__", method) for name, method in found.items()}
    for name, method in found.items():
        monkeypatch.setattr(DPEngineCoreProc, name, method)
    return found


class RecordingScheduler:
    def __init__(self, vote):
        self.prefill_vote, self.calls = vote, []

    def local_ballot(self):
        self.calls.append("ballot")
        return Ballot(wants_prefill=1, has_decodes=1, prefill_steps=1)

    def follow(self, verdict):
        self.calls.append(verdict)

    def end_wave(self):
        self.calls.append("end")


def engine_of(engine_class, scheduler, interval=1, counter=0):
    engine = engine_class.__new__(engine_class)
    engine.scheduler = scheduler
    engine.prefill_schedule_interval, engine.step_counter, engine.dp_sync_interval = (
        interval,
        counter,
        16,
    )
    return engine


def test_installing_again_changes_nothing(originals):
    dp_vote.install()
    first = [getattr(DPEngineCoreProc, name) for name in METHODS]
    dp_vote.install()
    assert [getattr(DPEngineCoreProc, name) for name in METHODS] == first
    assert [method.__wrapped__ for method in first] == [originals[name] for name in METHODS]


def test_a_subclass_that_was_made_before_votes_too(originals):
    class Actor(DPEngineCoreProc):
        pass

    scheduler = RecordingScheduler(Vote(VoteSettings(), 2))
    engine = engine_of(Actor, scheduler, counter=1)
    scheduler.prefill_vote.phase = Phase.DECODE
    dp_vote.install()
    assert engine._has_global_unfinished_reqs(True)
    assert scheduler.calls == [Verdict(Phase.DECODE, None, False)]
    assert engine._should_throttle_prefills()


@pytest.mark.parametrize("scheduler", [SimpleNamespace(), SimpleNamespace(prefill_vote=None)])
def test_a_scheduler_without_a_vote_runs_as_before(originals, scheduler):
    dp_vote.install()
    for counter in range(1, 6):
        engine = engine_of(DPEngineCoreProc, scheduler, interval=3, counter=counter)
        assert engine._should_throttle_prefills() == (counter % 3 != 0)
        assert engine._has_global_unfinished_reqs(False)
        assert engine.step_counter == counter + 1


def test_prefills_are_throttled_in_decode_phases_and_only_there(originals):
    dp_vote.install()
    scheduler = RecordingScheduler(Vote(VoteSettings(), 2))
    # vLLM's own cadence would throttle at this step; the vote alone decides.
    engine = engine_of(DPEngineCoreProc, scheduler, interval=3, counter=4)
    for phase in Phase:
        scheduler.prefill_vote.phase = phase
        assert engine._should_throttle_prefills() == (phase is Phase.DECODE)


@pytest.mark.parametrize(("configured", "expected_s"), [(None, dp_vote.DEFAULT_TIMEOUT_S), (7, 7)])
def test_a_vote_takes_one_exchange_with_the_configured_limit(monkeypatch, configured, expected_s):
    seen = []

    def exchange(ballot, group, timeout_s, **agreed):
        seen.append((group, timeout_s, agreed))
        return [ballot, ballot]

    monkeypatch.setattr(dp_vote, "exchange_ballots", exchange)
    vote = Vote(VoteSettings(), 2)
    scheduler = RecordingScheduler(vote)
    parallel_config = SimpleNamespace(cpu_distributed_timeout_seconds=configured)
    engine = SimpleNamespace(
        scheduler=scheduler,
        dp_group="group",
        step_counter=5,
        vllm_config=SimpleNamespace(parallel_config=parallel_config),
    )
    dp_vote.take_vote(engine, vote, running=True)
    assert seen == [("group", expected_s, {"round_number": 5, "settings": vote.settings})]
    assert scheduler.calls == ["ballot", Verdict(Phase.DECODE, None, True)]
    dp_vote.take_vote(engine, vote, running=False)
    assert scheduler.calls[2:] == ["end"]
    assert len(seen) == 1


def test_importing_the_patch_does_not_load_vllm():
    code = "import sys, vllm_deepinfer.patch.dp_vote; sys.exit('vllm' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
