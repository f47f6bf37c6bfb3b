"""A small model of data-parallel ranks that step together, each with its own vote.

Prompts reserve their blocks on admission, chunks go first come first served, and a wave ends at a
check in every 16th step that finds no request on any rank. Every step is recorded.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from vllm_deepinfer.scheduler.vote import Ballot, Phase, Verdict, Vote, VoteSettings

WATERMARK = 0.9
SYNC_INTERVAL = 16


@dataclass
class Prompt:
    """A request. Times are numbers of steps; None while it has not happened. `arrives` may be in
    milliseconds instead."""

    arrives: int
    prompt_tokens: int
    output_tokens: int
    left_tokens: int = 0
    outputs_left: int = 0
    started: int | None = None
    prefilled: int | None = None
    ended: int | None = None
    arrived_ms: float = 0.0

    def __post_init__(self) -> None:
        self.left_tokens, self.outputs_left = self.prompt_tokens, self.output_tokens

    @property
    def size(self) -> int:
        return self.prompt_tokens + self.output_tokens


@dataclass
class Rank:
    """One rank. `overrates_room` says it can prefill whenever something waits."""

    arrivals: deque[Prompt]
    max_running: int = 4
    capacity_tokens: int = 400
    chunk_tokens: int = 16
    overrates_room: bool = False
    waiting: deque[Prompt] = field(default_factory=deque)
    running: list[Prompt] = field(default_factory=list)
    prefilled_tokens: int = 0

    def receive(self, now: float, now_ms: float) -> None:
        while self.arrivals and self.arrivals[0].arrives <= now:
            prompt = self.arrivals.popleft()
            prompt.arrived_ms = now_ms
            self.waiting.append(prompt)

    def is_done(self) -> bool:
        return not self.waiting and not self.running

    def decoding(self) -> list[Prompt]:
        return [prompt for prompt in self.running if not prompt.left_tokens]

    def begun(self) -> list[Prompt]:
        return [prompt for prompt in self.running if prompt.left_tokens]

    def admissible(self) -> list[Prompt]:
        """Waiting prompts with room, in order."""
        used, found = sum(prompt.size for prompt in self.running), []
        for prompt in self.waiting:
            has_slot = len(self.running) + len(found) < self.max_running
            has_blocks = used + prompt.size <= self.capacity_tokens
            if not (has_slot and has_blocks and used <= WATERMARK * self.capacity_tokens):
                break
            found.append(prompt)
            used += prompt.size
        return found

    def wants(self) -> bool:
        return bool(self.begun() or self.admissible())

    def ballot(self, now_ms: float, decode_us: int, prefill_us: int) -> Ballot:
        roomy = self.begun() + self.admissible()
        first_tokens_due = self.begun() + list(self.waiting)
        claims = self.wants() or (self.overrates_room and bool(self.waiting))
        return Ballot(
            wants_prefill=int(claims),
            has_decodes=int(bool(self.decoding())),
            is_mid_prompt=int(bool(self.begun())),
            prefill_steps=max(1, -(-sum(p.left_tokens for p in roomy) // self.chunk_tokens))
            if claims
            else 0,
            prefilled_tokens=self.prefilled_tokens,
            oldest_wait_ms=int(max((now_ms - p.arrived_ms for p in first_tokens_due), default=0)),
            decode_step_us=decode_us,
            prefill_step_us=prefill_us,
        )

    def run(self, phase: Phase, step: int) -> None:
        self.prefilled_tokens = 0
        if phase is Phase.PREFILL:
            self._prefill(step)
            return
        for prompt in self.decoding():
            prompt.outputs_left -= 1
            if prompt.outputs_left <= 0:
                prompt.ended = step
                self.running.remove(prompt)

    def _prefill(self, step: int) -> None:
        for prompt in self.admissible():
            if sum(p.left_tokens for p in self.begun()) >= self.chunk_tokens:
                break
            self.waiting.popleft()
            self.running.append(prompt)
        for prompt in self.begun():
            tokens = min(prompt.left_tokens, self.chunk_tokens - self.prefilled_tokens)
            if not tokens:
                break
            prompt.started = step if prompt.started is None else prompt.started
            prompt.left_tokens -= tokens
            self.prefilled_tokens += tokens
            if not prompt.left_tokens:
                prompt.prefilled = step


@dataclass
class Step:
    """What happened in one step, and what was decided after it. `wanted` is as it was before."""

    phase: Phase
    wanted: list[bool]
    had_decodes: list[bool]
    prefilled_tokens: list[int] = field(default_factory=list)
    ballots: list[Ballot] | None = None
    verdict: Verdict | None = None  # None: the wave ended
    decode_steps: int = 0

    @property
    def is_productive(self) -> bool:
        return any(self.prefilled_tokens)


def run_lockstep(
    ranks: list[Rank],
    settings: VoteSettings,
    num_steps: int,
    decode_us: int = 1000,
    prefill_us: int = 5000,
    is_timed: bool = True,
    arrives_in_ms: bool = False,
) -> list[Step]:
    """Runs at most `num_steps` steps, until nothing arrives any more and the last wave ended.

    Requires after every step that all ranks agree on the phase, on whether ballots are due, and on
    the verdict. `is_timed` false: ranks do not know how long their steps take. `arrives_in_ms`:
    prompts arrive by the clock, so that long steps see more of them.
    """
    votes = [Vote(settings, len(ranks)) for _ in ranks]
    steps: list[Step] = []
    now_ms, wave_steps = 0.0, 0
    known = (decode_us, prefill_us) if is_timed else (0, 0)
    for number in range(num_steps):
        for rank in ranks:
            rank.receive(now_ms if arrives_in_ms else number, now_ms)
        if not wave_steps and all(rank.is_done() for rank in ranks):
            if not any(rank.arrivals for rank in ranks):
                break
            now_ms += decode_us / 1e3  # time passes while nobody steps
            continue
        wave_steps += 1
        (phase,) = {vote.phase for vote in votes}
        step = Step(phase, [r.wants() for r in ranks], [bool(r.decoding()) for r in ranks])
        steps.append(step)
        for rank in ranks:
            rank.run(phase, number)
        step.prefilled_tokens = [rank.prefilled_tokens for rank in ranks]
        now_ms += (decode_us if phase is Phase.DECODE else prefill_us) / 1e3
        is_sync = wave_steps == 1 or wave_steps % SYNC_INTERVAL == 0
        if is_sync and all(rank.is_done() for rank in ranks):
            wave_steps = 0
            for vote in votes:
                vote.reset()
            continue
        (is_due,) = {vote.needs_ballots() for vote in votes}
        if is_due:
            step.ballots = [rank.ballot(now_ms, *known) for rank in ranks]
        (step.verdict,) = {vote.advance(step.ballots) for vote in votes}
        (step.decode_steps,) = {vote.decode_steps for vote in votes}
    return steps
