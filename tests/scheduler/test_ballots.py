"""Ballots reach every rank in rank order, and a rank that is gone, stuck or out of step is named.

Claim: real processes over real gloo sockets agree; nothing hangs beyond the timeout. If this
breaks, ranks decide from different ballots and then wait for each other in different collectives,
or a dead rank stops all others without a word.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from gloo_ranks import make_group

from vllm_deepinfer.scheduler.ballots import ExchangeError, exchange_ballots
from vllm_deepinfer.scheduler.vote import Ballot, VoteError, VoteSettings

TIMEOUT_S = 2.0
LIMIT_S = 40.0  # of a whole test; a test that reaches it fails
SLACK_S = 5.0  # for a busy machine
CONTEXT = multiprocessing.get_context("fork")


def ballot_of(rank: int, round_number: int) -> Ballot:
    """A ballot that no other rank and round has."""
    base = 1000 * rank + 10 * round_number
    return Ballot(rank % 2, 1, 0, *range(base, base + 5))


def run_ranks(num_ranks: int, folder: Path, task: Callable) -> list:
    """What `task(rank, group)` returns in a process for each rank; None where it died."""
    results = [CONTEXT.SimpleQueue() for _ in range(num_ranks)]
    may_leave = CONTEXT.Event()

    def work(rank: int) -> None:
        group = make_group(str(folder / "store"), rank, num_ranks)
        results[rank].put(task(rank, group))
        may_leave.wait(LIMIT_S)  # leaving closes sockets that others may still read from
        os._exit(0)  # without the destructors of a group that may be broken

    processes = [CONTEXT.Process(target=work, args=(rank,)) for rank in range(num_ranks)]
    for process in processes:
        process.start()
    deadline = time.monotonic() + LIMIT_S
    while pending := [
        rank
        for rank, process in enumerate(processes)
        if results[rank].empty() and process.is_alive()
    ]:
        if time.monotonic() > deadline:
            break
        time.sleep(0.02)
    may_leave.set()
    for process in processes:
        process.join(1.0)
        process.kill()
        process.join()
    assert not pending, f"ranks {pending} hang"
    return [None if queue.empty() else queue.get() for queue in results]


def exchange(rank, group, round_number=1, settings=None, timeout_s=TIMEOUT_S):
    """The ballots of all ranks, or the text of the error and the seconds that it took."""
    start = time.monotonic()
    try:
        return exchange_ballots(
            ballot_of(rank, round_number),
            group,
            timeout_s,
            round_number=round_number,
            settings=settings,
        )
    except ExchangeError as error:
        return str(error), time.monotonic() - start


@pytest.mark.parametrize("num_ranks", [2, 3, 4])
def test_all_ranks_see_the_same_ballots_in_rank_order(num_ranks, tmp_path):
    rounds = range(1, 21)
    seen = run_ranks(
        num_ranks,
        tmp_path,
        lambda rank, group: [exchange(rank, group, number, timeout_s=LIMIT_S) for number in rounds],
    )
    expected = [[ballot_of(rank, number) for rank in range(num_ranks)] for number in rounds]
    assert seen == [expected] * num_ranks


def test_a_killed_rank_fails_the_others_within_the_timeout(tmp_path):
    def task(rank, group):
        exchange(rank, group, timeout_s=LIMIT_S)
        if rank == 1:
            os.kill(os.getpid(), 9)
        return exchange(rank, group, 2)

    first, dead, last = run_ranks(3, tmp_path, task)
    assert dead is None
    for rank, (text, waited_s) in ((0, first), (2, last)):
        assert f"rank {rank} could not exchange ballots with all 3 data-parallel ranks" in text
        assert waited_s < TIMEOUT_S + SLACK_S


def test_a_stalled_rank_is_an_error_after_the_timeout_and_no_hang(tmp_path):
    others_gave_up = CONTEXT.Event()

    def task(rank, group):
        exchange(rank, group, timeout_s=LIMIT_S)
        if rank == 1:
            others_gave_up.wait(LIMIT_S)
        result = exchange(rank, group, 2)
        others_gave_up.set()
        return result

    for rank, (text, waited_s) in enumerate(run_ranks(2, tmp_path, task)):
        assert f"within {TIMEOUT_S:g} s" in text
        assert "look at the logs of the other ranks" in text
        assert "--cpu-distributed-timeout-seconds" in text
        if rank == 0:
            assert TIMEOUT_S - 0.1 < waited_s < TIMEOUT_S + SLACK_S


def test_ranks_out_of_step_are_named_on_every_rank(tmp_path):
    def task(rank, group):
        return exchange(rank, group, 7 if rank == 1 else 6, timeout_s=LIMIT_S)

    for text, _ in run_ranks(3, tmp_path, task):
        assert "differ in round (rank 0: 6, rank 1: 7, rank 2: 6)" in text


def test_ranks_with_different_settings_are_named(tmp_path):
    def task(rank, group):
        settings = VoteSettings(any_interval=100 + rank)
        return exchange(rank, group, settings=settings, timeout_s=LIMIT_S)

    for text, _ in run_ranks(2, tmp_path, task):
        assert "2 data-parallel ranks differ in settings" in text
        assert "same vote options" in text


@pytest.fixture
def lone_group(tmp_path):
    return make_group(str(tmp_path / "store"), 0, 1)


def test_a_rank_alone_gets_its_own_ballot(lone_group):
    ballot = Ballot(1, 1, 1, 2**62 - 1, 2, 3, 4, 5)
    assert exchange_ballots(ballot, lone_group, TIMEOUT_S, round_number=1) == [ballot]


@pytest.mark.parametrize("value", [1.5, "1", None, -1, 2**62])
def test_a_field_that_no_collective_can_carry_is_named(value, lone_group):
    ballot = Ballot(oldest_wait_ms=value)
    with pytest.raises(VoteError, match=r"oldest_wait_ms of a ballot is"):
        exchange_ballots(ballot, lone_group, TIMEOUT_S, round_number=1)


def test_rounds_count_from_one(lone_group):
    with pytest.raises(VoteError, match="round_number is 0"):
        exchange_ballots(Ballot(), lone_group, TIMEOUT_S, round_number=0)
