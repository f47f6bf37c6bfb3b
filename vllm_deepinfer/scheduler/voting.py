"""The vote inside vLLM's scheduler: keeps what ballots need, and schedules by what was decided."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from vllm_deepinfer.config import DeepInferConfig
from vllm_deepinfer.metrics.catalogue import (
    BALLOTS,
    DENIALS,
    GRANTS,
    LONGEST_WAIT,
    STEPS,
    counter,
)
from vllm_deepinfer.metrics.shared_counters import SharedCounters
from vllm_deepinfer.scheduler.phases import schedule_in_phase
from vllm_deepinfer.scheduler.readiness import StepClock, local_ballot
from vllm_deepinfer.scheduler.vote import Ballot, Phase, Verdict, Vote, VoteSettings


class UnvotedStepError(RuntimeError):
    """Two steps were scheduled and no vote was taken between them."""


def vote_settings(options: DeepInferConfig) -> VoteSettings:
    """The vote that the options describe."""
    return VoteSettings(
        mode=options.prefill_vote,
        all_interval=options.prefill_all_interval,
        any_interval=options.prefill_any_interval,
        resume_interval=options.prefill_resume_interval,
        idle_interval=options.prefill_idle_interval,
        max_prefill_steps=options.prefill_max_steps,
        ttft_target_ms=options.ttft_target_ms,
        itl_target_ms=options.itl_target_ms,
    )


class PrefillVoting:
    """One rank's part in the vote.

    With one rank it decides before each step by itself; with more, the engine's loop collects the
    ballots after each step.

    Attributes:
        round: decisions taken so far; it counts alike on all ranks.
    """

    def __init__(self, options: DeepInferConfig, num_ranks: int, counters: SharedCounters) -> None:
        self.vote = Vote(vote_settings(options), num_ranks)
        self._is_strict = options.prefill_phases == "strict"
        self._kv_watermark = options.prefill_kv_watermark
        self._counters = counters
        self._clock = StepClock()
        self._arrived_s: dict[str, float] = {}  # prompts without a first token, oldest first
        self._prefilled_tokens = 0
        self._is_unvoted = False
        self._wanted = False
        self.round = 0

    # -- the vote ----------------------------------------------------------------------------------

    def ballot(self, scheduler: Any, started: list[Any]) -> Ballot:
        """What this rank knows after the step just run.

        Args:
            started: running requests whose prompt was begun and not finished.
        """
        oldest_s = next(iter(self._arrived_s.values()), None)
        ballot = local_ballot(
            scheduler,
            started,
            self._kv_watermark,
            self.vote.settings.max_prefill_steps,
            self._clock,
            0.0 if oldest_s is None else 1e3 * (time.monotonic() - oldest_s),
            self._prefilled_tokens,
        )
        self._wanted = bool(ballot.wants_prefill)
        return ballot

    def follow(self, verdict: Verdict) -> None:
        """Take note of what was decided for the next step."""
        self._open_round()
        if verdict.took_ballots:
            self._counters.add(BALLOTS, self.vote.num_ranks > 1)
            if verdict.kind is not None:
                self._counters.add(counter(GRANTS, verdict.kind.value))
            elif self._wanted:
                self._counters.add(DENIALS)

    def end_wave(self) -> None:
        """All ranks are finished; the next step begins a wave."""
        self._open_round()
        self.vote.reset()

    def _open_round(self) -> None:
        self.round += 1
        self._is_unvoted, self._prefilled_tokens = False, 0

    # -- the step ----------------------------------------------------------------------------------

    @property
    def runs_prompts(self) -> bool:
        """Whether the next step computes prompts."""
        return self.vote.phase is Phase.PREFILL

    @property
    def runs_decodes(self) -> bool:
        """Whether the next step computes decodes."""
        return self.vote.phase is Phase.DECODE or not self._is_strict

    def decide(self, scheduler: Any, started: list[Any]) -> None:
        """A single rank votes by itself, right before a step."""
        if self.vote.num_ranks > 1 or not self._is_unvoted:
            return
        if self.vote.phase is Phase.DECODE and not started and not scheduler.waiting:
            self.follow(self.vote.decode_on())
        else:
            self.follow(self.vote.advance([self.ballot(scheduler, started)]))

    def schedule(self, scheduler: Any, schedule: Callable[[bool], Any]) -> Any:
        """vLLM's output for a step of the phase that was decided."""
        output = schedule_in_phase(scheduler, schedule, self.vote.phase, self._is_strict)
        if self.vote.num_ranks == 1:
            self._is_unvoted = True
        return output

    def begin_step(self, output: Any, prompt_tokens: int) -> None:
        """Note a step that computes something, ``prompt_tokens`` of it prompts.

        Raises:
            UnvotedStepError: more ranks take part, and they did not vote since the last step.
        """
        if self.vote.num_ranks > 1 and self._is_unvoted:
            raise UnvotedStepError(
                f"two steps ran without a vote of the {self.vote.num_ranks} data-parallel ranks "
                "between them: this engine does not run vLLM's data-parallel loop. Set "
                '"prefill_vote" to "off".'
            )
        self._is_unvoted = True
        self._prefilled_tokens = prompt_tokens
        self._counters.add(counter(STEPS, self.vote.phase.value))
        now_s = time.monotonic()
        for request in output.scheduled_new_reqs:
            waited_s = now_s - self._arrived_s.get(request.req_id, now_s)
            if waited_s > self._counters[LONGEST_WAIT]:
                self._counters.set(LONGEST_WAIT, waited_s)

    def add_request(self, request_id: str) -> None:
        self._arrived_s.setdefault(request_id, time.monotonic())

    def observe(self, phase: Phase, step_ms: float) -> None:
        """A step of this kind has run."""
        self._clock.observe(phase, step_ms)

    def settle(self, scheduler_output: Any, output: Any) -> None:
        """Forget prompts that have their first token, and requests that ended."""
        for name in scheduler_output.finished_req_ids:
            self._arrived_s.pop(name, None)
        if self._arrived_s and output.sampled_token_ids:
            for name in self._arrived_s.keys() & output.req_id_to_index.keys():
                if output.sampled_token_ids[output.req_id_to_index[name]]:
                    del self._arrived_s[name]
