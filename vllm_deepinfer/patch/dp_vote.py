"""Two methods of vLLM's data-parallel engine loop, replaced so that ranks can vote.

Symptom: ranks that share experts step in lockstep but choose prefill or decode alone, so a prompt
on one rank stalls the decodes of all; median inter-token latency rises several times over.
Reason: the only point that every rank passes once per step, requests or not, is a method of
`DPEngineCoreProc`. `Scheduler.schedule` is not: a rank without requests never calls it, and a
collective there would wait for it for ever. No hook or option of vLLM runs code at that point.
Versions: 0.32 and 0.33, where both methods have the same signatures and meaning.
Remove when: vLLM calls the scheduler, or a plugin, once per step of a running wave on every rank.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

from vllm_deepinfer.scheduler.ballots import exchange_ballots
from vllm_deepinfer.scheduler.vote import Phase, Vote

# What torch allows a gloo collective, and so vLLM its own on the same group.
DEFAULT_TIMEOUT_S = 1800.0
_MARK = "takes_votes"


def install() -> None:
    """Replaces the methods. Safe to repeat; a scheduler without a vote runs as before.

    Call it in the process that runs the engine, where the loop's module is loaded already.
    """
    from vllm.v1.engine.core import DPEngineCoreProc

    install_on(DPEngineCoreProc)


def install_on(engine_class: type) -> None:
    """Replaces the methods of `engine_class`, on the class itself, so that subclasses and
    instances that exist already change too."""
    if hasattr(engine_class._has_global_unfinished_reqs, _MARK):
        return
    decide_wave = engine_class._has_global_unfinished_reqs
    decide_throttling = engine_class._should_throttle_prefills

    @wraps(decide_wave)
    def _has_global_unfinished_reqs(self: Any, local_unfinished: bool) -> bool:
        running = decide_wave(self, local_unfinished)
        vote = vote_of(self)
        if vote is not None:
            take_vote(self, vote, running)
        return running

    @wraps(decide_throttling)
    def _should_throttle_prefills(self: Any) -> bool:
        vote = vote_of(self)
        return decide_throttling(self) if vote is None else vote.phase is Phase.DECODE

    setattr(_has_global_unfinished_reqs, _MARK, True)
    engine_class._has_global_unfinished_reqs = _has_global_unfinished_reqs
    engine_class._should_throttle_prefills = _should_throttle_prefills


def vote_of(engine: Any) -> Vote | None:
    """The vote that the engine's scheduler takes part in."""
    return getattr(engine.scheduler, "prefill_vote", None)


def take_vote(engine: Any, vote: Vote, running: bool) -> None:
    """Decides the next step with all ranks, or ends the wave with them.

    Args:
        engine: its scheduler has `local_ballot()`, `follow(verdict)` and `end_wave()`.
        vote: of that scheduler.
        running: what all ranks have just agreed on: whether the wave goes on.

    Raises:
        ExchangeError, VoteError: the ranks cannot agree; the engine must not go on.
    """
    if not running:
        engine.scheduler.end_wave()
        return
    ballots = None
    if vote.needs_ballots():
        ballots = exchange_ballots(
            engine.scheduler.local_ballot(),
            # Read anew: elastic expert parallelism replaces the group.
            engine.dp_group,
            _timeout_s(engine),
            round_number=engine.step_counter,
            settings=vote.settings,
        )
    engine.scheduler.follow(vote.advance(ballots))


def _timeout_s(engine: Any) -> float:
    seconds = engine.vllm_config.parallel_config.cpu_distributed_timeout_seconds
    return DEFAULT_TIMEOUT_S if seconds is None else float(seconds)
