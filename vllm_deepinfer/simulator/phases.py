"""Which ranks compute prompts and which decode in a step: vLLM's own rules, or the vote's."""

from __future__ import annotations

from collections import deque

import numpy as np

from vllm_deepinfer.scheduler.vote import Ballot, Phase, Verdict, Vote
from vllm_deepinfer.simulator.ranks import Ranks
from vllm_deepinfer.simulator.scenario import Scenario

_TIMES_REMEMBERED = 9


class UpstreamPhases:
    """vLLM's data-parallel loop: prompts join any step, or every n-th one.

    A rank that could not take all of its waiting prompts when it last might, or that decodes
    nothing, does not wait for the n-th step. Source: `Scheduler.schedule` of vLLM 0.32.
    """

    runs_decodes = True

    def __init__(self, scenario: Scenario) -> None:
        self._interval = scenario.prefill_interval
        self._step = 0
        self._is_saturated = np.zeros(scenario.ranks, dtype=bool)

    def may_prefill(self, ranks: Ranks) -> np.ndarray:
        """Which ranks compute prompt tokens in this step."""
        if self._interval == 1 or self._step % self._interval == 0:
            return np.ones(len(self._is_saturated), dtype=bool)
        return self._is_saturated | (ranks.num_decoding == 0)

    def scheduled(self, ranks: Ranks, may_prefill: np.ndarray) -> None:
        """Note what is left waiting once the step's prompts are chosen."""
        left = np.array([len(queue) > 0 for queue in ranks.waiting])
        self._is_saturated = np.where(may_prefill, left, self._is_saturated)

    def ran(self, ranks: Ranks, computed: np.ndarray, now_ms: float, step_ms: float) -> None:
        self._step += 1

    def end_wave(self) -> None:
        self._step = 0


class VotedPhases:
    """The vote of this package, with ballots as the engine fills them.

    Args:
        scenario: with a vote.
        num_votes: copies of the vote to run, one per rank or a single one for all, which is the
            same and faster: each is fed the same ballots.
    """

    def __init__(self, scenario: Scenario, num_votes: int = 1) -> None:
        self.scenario = scenario
        self.votes = [Vote(scenario.vote, scenario.ranks) for _ in range(num_votes)]
        self.verdicts: list[Verdict] = []
        self._times_ms = {phase: deque(maxlen=_TIMES_REMEMBERED) for phase in Phase}

    @property
    def phase(self) -> Phase:
        return self.votes[0].phase

    @property
    def runs_decodes(self) -> bool:
        return self.phase is Phase.DECODE or not self.scenario.strict

    def may_prefill(self, ranks: Ranks) -> np.ndarray:
        return np.full(self.scenario.ranks, self.phase is Phase.PREFILL)

    def scheduled(self, ranks: Ranks, may_prefill: np.ndarray) -> None:
        pass

    def ran(self, ranks: Ranks, computed: np.ndarray, now_ms: float, step_ms: float) -> None:
        """Let all ranks decide the next step."""
        if self.phase is Phase.DECODE or computed.any():
            self._times_ms[self.phase].append(step_ms)
        ballots = None
        if self.votes[0].needs_ballots():
            ballots = self._ballots(ranks, computed, now_ms)
        self.verdicts = [vote.advance(ballots) for vote in self.votes]

    def end_wave(self) -> None:
        for vote in self.votes:
            vote.reset()

    def _ballots(self, ranks: Ranks, computed: np.ndarray, now_ms: float) -> list[Ballot]:
        decode_us, prefill_us = self._usual_us(Phase.DECODE), self._usual_us(Phase.PREFILL)
        return [
            Ballot(
                wants_prefill=int(bool(ranks.started[rank]) or ranks.can_admit(rank)),
                has_decodes=int(ranks.num_decoding[rank] > 0),
                is_mid_prompt=int(bool(ranks.started[rank])),
                prefill_steps=self._prefill_steps(ranks, rank),
                prefilled_tokens=int(computed[rank]),
                oldest_wait_ms=round(self._oldest_wait_ms(ranks, rank, now_ms)),
                decode_step_us=decode_us,
                prefill_step_us=prefill_us,
            )
            for rank in range(self.scenario.ranks)
        ]

    def _usual_us(self, phase: Phase) -> int:
        times = sorted(self._times_ms[phase])
        return round(1e3 * times[len(times) // 2]) if times else 0

    def _prefill_steps(self, ranks: Ranks, rank: int) -> int:
        """Steps for the prompts with room; counted up to the most that a grant gives."""
        chunk, most = self.scenario.chunk_tokens, self.scenario.vote.max_prefill_steps
        tokens = sum(int(ranks.prompt_left[slot]) for slot in ranks.started[rank])
        promised, places = 0, len(ranks.free[rank])
        for request in ranks.waiting[rank]:
            prompt = ranks.prompt_of(request)
            if not places or tokens >= most * chunk or not ranks.has_room(rank, promised, prompt):
                break
            tokens, promised, places = tokens + prompt, promised + prompt, places - 1
        return min(-(-tokens // chunk), most)

    def _oldest_wait_ms(self, ranks: Ranks, rank: int, now_ms: float) -> float:
        """Age of the oldest prompt without a first token; 0 without one."""
        requests = [int(ranks.request[slot]) for slot in ranks.started[rank]]
        if ranks.waiting[rank]:
            requests.append(ranks.waiting[rank][0])
        unanswered = [r for r in requests if np.isnan(ranks.requests.first_token_ms[r])]
        if not unanswered:
            return 0.0
        return now_ms - min(float(ranks.requests.arrival_ms[r]) for r in unanswered)
