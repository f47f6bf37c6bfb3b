"""The simulated engine: ranks in lockstep, one step after the other.

A step takes as long as on the slowest rank. What it computes, emits and measures is settled at its
end, and the next step's kind is decided from that.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from vllm_deepinfer.simulator.measures import Measures
from vllm_deepinfer.simulator.phases import UpstreamPhases, VotedPhases
from vllm_deepinfer.simulator.randomness import normals, random_bits
from vllm_deepinfer.simulator.ranks import Ranks
from vllm_deepinfer.simulator.scenario import Scenario
from vllm_deepinfer.simulator.speculation import Speculation
from vllm_deepinfer.simulator.traffic import Requests

_FORWARD_NOISE, _SAMPLER_NOISE = 6, 7  # streams of random bits


class StepRecord(NamedTuple):
    """One step as an observer sees it; arrays are per rank and not to be kept or changed."""

    step: int
    start_ms: float
    step_ms: float
    prefilled_tokens: np.ndarray
    sequences: np.ndarray  # requests that decoded
    verified_drafts: np.ndarray
    simulation: Simulation


class Simulation:
    """One run of a scenario.

    Args:
        scenario: what to run.
        observer: called after every step.
        num_votes: see `VotedPhases`.
    """

    def __init__(
        self,
        scenario: Scenario,
        observer: Callable[[StepRecord], None] | None = None,
        num_votes: int = 1,
    ) -> None:
        self.scenario, self._observer = scenario, observer
        self.requests = Requests(scenario.traffic, scenario.seed)
        self.ranks = Ranks(scenario, self.requests)
        self.speculation = Speculation(scenario, self.ranks)
        voted = scenario.vote is not None
        self.phases = VotedPhases(scenario, num_votes) if voted else UpstreamPhases(scenario)
        self.measures = Measures(scenario)
        self.step, self.now_ms = 0, 0.0
        self._firsts = np.arange(scenario.ranks + 1) * scenario.sequences
        self._end_ms = math.inf if scenario.seconds is None else 1e3 * scenario.seconds
        self._last_step = math.inf if scenario.steps is None else scenario.steps

    def run(self) -> Measures:
        """Step until the scenario's end, or until nothing is left to do."""
        while self.step < self._last_step and self.now_ms < self._end_ms and self._wake():
            self._run_step()
        self.measures.close(self.now_ms, self.ranks)
        return self.measures

    def _wake(self) -> bool:
        """Take what has arrived; if nobody has work, sleep until something does."""
        self._take_arrivals()
        if not self.ranks.is_idle():
            return True
        self.phases.end_wave()
        next_ms = self.requests.next_ms()
        if next_ms == math.inf:
            return False
        self.now_ms = max(self.now_ms, next_ms)
        self._take_arrivals()
        return True

    def _take_arrivals(self) -> None:
        for request in self.requests.due(self.now_ms):
            self.ranks.enqueue(request)

    def _run_step(self) -> None:
        scenario, ranks = self.scenario, self.ranks
        slots, bounds, context, lengths = self._choose_decodes()
        sequences = np.diff(bounds)
        drafts = np.add.reduceat(np.append(lengths, 0), bounds[:-1]) * (sequences > 0)
        tokens = sequences + drafts
        computed, finished_prompts = self._prefill(tokens)
        sampled = sequences + np.array([len(done) for done in finished_prompts])
        forward_ms = scenario.curve.mixed_ms(computed, tokens, context)
        forward_ms *= self._noise(_FORWARD_NOISE)
        sampler_ms = self._sampler_ms(sampled) * self._noise(_SAMPLER_NOISE)
        step_ms = float(forward_ms.max() + sampler_ms.max())
        start_ms, self.now_ms = self.now_ms, self.now_ms + step_ms
        if slots.size and not computed.any():
            lockstep_ms = np.full(scenario.ranks, forward_ms.max())
            self.speculation.observe(sequences, tokens, context, lockstep_ms, sampler_ms)
        self._emit(slots, lengths, step_ms, computed)
        for done in finished_prompts:
            self._first_tokens(done)
        self._take_arrivals()
        self.phases.ran(ranks, computed, self.now_ms, step_ms)
        if self._observer is not None:
            record = StepRecord(self.step, start_ms, step_ms, computed, sequences, drafts, self)
            self._observer(record)
        self.step += 1

    def _choose_decodes(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Decoding slots, each rank's part of them, its context tokens, and drafts to verify."""
        ranks = self.ranks
        if not self.phases.runs_decodes:
            nothing = np.zeros(0, dtype=np.int64)
            zeros = np.zeros(self.scenario.ranks + 1, dtype=np.int64)
            return nothing, zeros, zeros[1:], nothing
        ranks.make_room()
        slots = np.flatnonzero(ranks.is_decoding)
        bounds = np.searchsorted(slots, self._firsts)
        running = np.concatenate([[0], np.cumsum(ranks.context[slots])])
        context = np.diff(running[bounds])
        return slots, bounds, context, self.speculation.plan(slots, bounds, context)

    def _prefill(self, decode_tokens: np.ndarray) -> tuple[np.ndarray, list[list[int]]]:
        """Compute prompts where the step's kind allows it, beside the decodes' tokens."""
        ranks, scenario = self.ranks, self.scenario
        may_prefill = self.phases.may_prefill(ranks)
        computed = np.zeros(scenario.ranks, dtype=np.int64)
        done: list[list[int]] = [[] for _ in range(scenario.ranks)]
        for rank in np.flatnonzero(may_prefill):
            if ranks.started[rank] or ranks.waiting[rank]:
                budget = scenario.chunk_tokens - int(decode_tokens[rank])
                computed[rank], done[rank] = ranks.prefill(int(rank), budget)
        self.phases.scheduled(ranks, may_prefill)
        return computed, done

    def _emit(
        self, slots: np.ndarray, lengths: np.ndarray, step_ms: float, computed: np.ndarray
    ) -> None:
        """Settle what the decodes yielded."""
        survived = self.speculation.verify(slots, lengths)
        finished = self.ranks.emit(slots, survived + 1)
        self.measures.stepped(
            self.step, self.now_ms, step_ms, computed, self.ranks, slots, lengths, survived
        )
        for slot in finished.tolist():
            self._finish(slot)
        self.speculation.draft(slots[self.ranks.is_decoding[slots]] if finished.size else slots)

    def _first_tokens(self, done: list[int]) -> None:
        """The token that comes with the end of a prompt."""
        if not done:
            return
        slots = np.array(done)
        for slot in done:
            self.ranks.begin_decoding(slot)
        self.measures.first_tokens(self.step, self.now_ms, self.ranks, slots)
        finished = self.ranks.emit(slots, np.ones(len(slots), dtype=np.int64))
        for slot in finished.tolist():
            self._finish(slot)
        self.speculation.begin(slots[self.ranks.is_decoding[slots]])

    def _finish(self, slot: int) -> None:
        self.ranks.finish(slot, self.now_ms)
        self.requests.ended(1)

    def _sampler_ms(self, sequences: np.ndarray) -> np.ndarray:
        """Time of sampling and of drafting the next blocks."""
        curve = self.scenario.curve
        sampler_ms = curve.sampler_ms(sequences)
        if self.speculation.num_drafts:
            sampler_ms = sampler_ms + curve.drafter_ms(sequences)
        return np.where(sequences > 0, sampler_ms, 0.0)

    def _noise(self, stream: int) -> np.ndarray:
        """What each rank's time is multiplied by in this step."""
        ranks = np.arange(self.scenario.ranks)
        bits = random_bits(self.scenario.seed, stream, ranks, ranks * 0 + self.step)
        return np.exp(self.scenario.noise * normals(bits, 0))
