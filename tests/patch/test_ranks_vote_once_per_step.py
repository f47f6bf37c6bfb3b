"""In vLLM's own data-parallel loop every rank votes exactly once per step and decides alike.

Claim: in both supported releases, whichever rank begins a wave, with ranks that have nothing to do,
across waves and across a pause, all ranks take the same decisions in the same steps, none leaves
early, and an error ends the loop of every rank. If this breaks, ranks wait for each other for ever.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from engine_loop_ranks import LIMIT_S, SYNC_INTERVAL, Ranks
from lockstep_ranks import Prompt
from upstream_sources import SOURCES, source
from vllm.v1.core.sched.interface import PauseState

from vllm_deepinfer.scheduler.ballots import ExchangeError
from vllm_deepinfer.scheduler.vote import Phase, VoteSettings

SETTINGS = VoteSettings(all_interval=5, any_interval=7, resume_interval=3, idle_interval=2)
HEAD_START_S = 0.05  # for one rank before the others


@pytest.fixture(params=SOURCES)
def root(request) -> Path:
    return source(request.param)


def check_alike(ranks: Ranks) -> None:
    """All ranks took the same steps; in each they decided once, and alike."""
    first, *others = ranks.engines
    assert len(first.scheduler.decisions) == len(first.steps) > 0
    for engine in others:
        assert engine.scheduler.decisions == first.scheduler.decisions
        assert [step[:2] for step in engine.steps] == [step[:2] for step in first.steps]
    for engine in ranks.engines:
        num_executed = sum(executed for _, _, executed in engine.steps)
        assert engine.num_dummies == len(engine.steps) - num_executed
        check_steps(engine)


def check_steps(engine) -> None:
    """Steps are counted without a gap, run what was decided, and waves end at a common check."""
    decided, number = None, 0
    for (step_number, phase, _), decision in zip(
        engine.steps, engine.scheduler.decisions, strict=True
    ):
        assert step_number == number
        assert phase is (Phase.PREFILL if decided is None else decided.phase)
        decided, number = decision, number + 1
        if decision is None:
            assert number == 1 or number % SYNC_INTERVAL == 0
            number = 0


def test_waves_that_one_rank_begins_alone(root, tmp_path):
    ranks = Ranks(root, tmp_path, 3, SETTINGS)
    prompts = {1: [Prompt(0, 100, 30), Prompt(0, 5, 60)], 0: [Prompt(0, 40, 10)]}
    for wave, (rank, own) in enumerate(prompts.items()):
        ranks.add(rank, *own)
        time.sleep(HEAD_START_S)
        ranks.start_wave(wave, started_by=rank)
        assert ranks.wait_for_wave_end() == wave
    ranks.stop()
    check_alike(ranks)
    assert all(prompt.ended is not None for own in prompts.values() for prompt in own)
    assert ranks.engines[0].scheduler.decisions.count(None) == len(prompts)
    idle = ranks.engines[2]
    assert idle.num_dummies == len(idle.steps)


def test_prompts_that_arrive_during_a_wave(root, tmp_path):
    ranks = Ranks(root, tmp_path, 2, SETTINGS)
    first, late = Prompt(0, 30, 300), [Prompt(0, 50, 20) for _ in range(6)]
    ranks.add(0, first)
    ranks.start_wave(0, started_by=0)
    for number, prompt in enumerate(late):
        time.sleep(0.005)
        ranks.add(number % 2, prompt)
    ranks.wait_for_wave_end()
    if any(prompt.ended is None for prompt in late):  # the machine was slow: they began a new wave
        ranks.start_wave(1, started_by=-1)
        ranks.wait_for_wave_end()
    ranks.stop()
    check_alike(ranks)
    assert all(prompt.ended is not None for prompt in [first, *late])


def pause(engine) -> None:
    engine.scheduler.set_pause_state(PauseState.PAUSED_ALL)
    engine._pause_complete()


def test_a_pause_ends_the_wave_on_all_ranks_and_a_resume_begins_the_next(root, tmp_path):
    ranks = Ranks(root, tmp_path, 2, SETTINGS)
    prompts = [Prompt(0, 60, 1500), Prompt(0, 60, 1500)]  # long enough to be met by the pause
    for rank, prompt in enumerate(prompts):
        ranks.add(rank, prompt)
    for rank in (1, 0):
        ranks.tell(rank, pause)
        time.sleep(HEAD_START_S / 5)
    ranks.wait_for_wave_end()
    assert all(prompt.ended is None for prompt in prompts)
    ranks.start_wave(1, started_by=-1)  # a stale message; paused ranks must not heed it
    for rank in (1, 0):
        ranks.tell(rank, lambda engine: engine.resume_scheduler())
    ranks.wait_for_wave_end()
    ranks.stop()
    check_alike(ranks)
    assert all(prompt.ended is not None for prompt in prompts)
    assert ranks.engines[0].scheduler.decisions.count(None) == 2


def test_an_idle_pause_takes_one_step(root, tmp_path):
    ranks = Ranks(root, tmp_path, 2, SETTINGS)
    for rank in (0, 1):
        ranks.tell(rank, pause)
    ranks.wait_for_wave_end()
    ranks.stop()
    check_alike(ranks)
    assert [engine.scheduler.decisions for engine in ranks.engines] == [[None], [None]]


def test_an_error_in_a_vote_ends_the_loop_of_every_rank(tmp_path):
    ranks = Ranks(SOURCES["installed"], tmp_path, 2, SETTINGS, timeout_s=1)

    def fail():
        raise RuntimeError("no ballot")

    ranks.engines[1].scheduler.local_ballot = fail
    ranks.add(0, Prompt(0, 60, 60))
    ranks.start_wave(0, started_by=0)
    start = time.monotonic()
    ranks.join()
    assert time.monotonic() - start < LIMIT_S / 2
    waiting, failing = (thread.error for thread in ranks.threads)
    assert isinstance(waiting, ExchangeError)
    assert "2 data-parallel ranks within 1 s" in str(waiting)
    assert str(failing) == "no ballot"


def test_ranks_that_lost_step_are_named_at_the_next_ballot(tmp_path):
    ranks = Ranks(SOURCES["installed"], tmp_path, 2, SETTINGS)
    stray = ranks.engines[1]
    take_ballot = stray.scheduler.local_ballot

    def lose_step():
        if stray.step_counter == 2:
            stray.step_counter += 1
        return take_ballot()

    stray.scheduler.local_ballot = lose_step
    ranks.add(0, Prompt(0, 60, 300))
    ranks.start_wave(0, started_by=0)
    ranks.join()
    for thread in ranks.threads:
        assert isinstance(thread.error, ExchangeError)
        assert "differ in round (rank 0: 2, rank 1: 3)" in str(thread.error)
