"""The prefill/decode vote: which kind of step all data-parallel ranks run next. Pure policy.

Ranks that share experts step in lockstep, so one rank's prefill makes every other rank's decodes
wait. Voting gathers prefills into common steps, within a bound on how long a prompt may wait.
Source: DeepInfer's behaviour, section 1.4; `slo`, bursts, resume and idle points are our own.

Every rank owns a `Vote` and feeds it the same ballots in the same order, so all of them are always
in the same state, and agree on when ballots are needed at all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple


class Phase(Enum):
    """The kind of the next step."""

    PREFILL = "prefill"
    DECODE = "decode"


class Kind(Enum):
    """Why a prefill was granted."""

    ALL = "all"  # every rank wants one
    ANY = "any"  # the bound: some rank wants one and has waited long enough
    RESUME = "resume"  # a started prompt goes on
    IDLE = "idle"  # no rank has anything to decode
    CREDIT = "credit"  # the inter-token target can afford one
    DEADLINE = "deadline"  # a prompt would miss its first-token target
    BURST = "burst"  # one more step of what was just granted


class Ballot(NamedTuple):
    """What one rank knows, as integers so that a collective can carry it.

    wants_prefill: 1 if prompt tokens wait and there is room to compute some now.
    has_decodes: 1 if a running request has its prompt behind it.
    is_mid_prompt: 1 if a prompt was begun and not finished.
    prefill_steps: steps that the prompts with room for them would take.
    prefilled_tokens: prompt tokens computed in the step just run.
    oldest_wait_ms: age of the oldest prompt without a first token.
    decode_step_us, prefill_step_us: usual duration of a step of either kind; 0 if unknown.
    """

    wants_prefill: int = 0
    has_decodes: int = 0
    is_mid_prompt: int = 0
    prefill_steps: int = 0
    prefilled_tokens: int = 0
    oldest_wait_ms: int = 0
    decode_step_us: int = 0
    prefill_step_us: int = 0


_NUM_FLAGS = 3  # leading fields of a ballot that are 0 or 1


class VoteError(ValueError):
    """A setting of the vote is not allowed, or ballots do not match what was agreed."""


@dataclass(frozen=True)
class VoteSettings:
    """How ranks decide. Intervals count decode steps since the last prefill.

    mode: `cadence` grants at fixed points; `slo` by targets. Both keep the ANY bound.
    all_interval: `cadence`: every so many steps, a prefill if every rank wants one; so, too, once
        `resume_interval` steps have run, or right after a prefill if that is 0.
    any_interval: every so many steps, a prefill if any rank wants one: the bound.
    resume_interval: `cadence`: steps between bursts of one prompt, which decodes have for
        themselves; 0 leaves its chunks to the other points.
    idle_interval: steps between checks for ranks that wait while nobody decodes; 0 for none.
    max_prefill_steps: most prefill steps in a row that one grant gives.
    ballot_interval: `slo`: steps between ballots.
    ttft_target_ms, itl_target_ms: `slo`: time to first token; mean time between tokens.

    Raises:
        VoteError: names the setting, its value and what is allowed.
    """

    mode: str = "cadence"
    all_interval: int = 70
    any_interval: int = 100
    resume_interval: int = 10
    idle_interval: int = 8
    max_prefill_steps: int = 8
    ballot_interval: int = 4
    ttft_target_ms: float = 2000.0
    itl_target_ms: float = 50.0

    def __post_init__(self) -> None:
        if self.mode not in ("cadence", "slo"):
            raise VoteError(f"mode is {self.mode!r}; allowed: 'cadence', 'slo'.")
        for name in ("all_interval", "any_interval", "max_prefill_steps", "ballot_interval"):
            _require(name, getattr(self, name), minimum=1)
        for name in ("resume_interval", "idle_interval"):
            _require(name, getattr(self, name), minimum=0)
        for name in ("ttft_target_ms", "itl_target_ms"):
            value = getattr(self, name)
            if not isinstance(value, (int, float)) or not 0 < value < math.inf:
                raise VoteError(f"{name} is {value!r}; it must be a number, positive and finite.")

    @classmethod
    def compatible(cls) -> VoteSettings:
        """DeepInfer's own rules: one prefill step a grant, and no point but ALL and ANY."""
        return cls(resume_interval=0, idle_interval=0, max_prefill_steps=1)


def _require(name: str, value: object, minimum: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
        raise VoteError(f"{name} is {value!r}; it must be an integer of at least {minimum}.")


def _check_ballot(rank: int, ballot: Ballot) -> None:
    if min(ballot) >= 0 and max(ballot[:_NUM_FLAGS]) <= 1:
        return
    for position, (name, value) in enumerate(zip(Ballot._fields, ballot, strict=True)):
        is_flag = position < _NUM_FLAGS
        if value < 0 or (is_flag and value > 1):
            allowed = "0 or 1" if is_flag else "0 or more"
            raise VoteError(f"{name} in the ballot of rank {rank} is {value}; allowed: {allowed}.")


class Verdict(NamedTuple):
    """One decision: the next phase, why a prefill was granted (None: it was not), and whether it
    took ballots."""

    phase: Phase
    kind: Kind | None
    took_ballots: bool


class Vote:
    """One rank's copy of the agreed state.

    After every step: `advance(ballots if needs_ballots() else None)`. The first step of a wave, in
    which nobody has run anything, is a prefill by definition.

    Args:
        settings: the same on all ranks.
        num_ranks: one rank decides alone and looks at its own ballot after every step.
    """

    def __init__(self, settings: VoteSettings, num_ranks: int) -> None:
        _require("num_ranks", num_ranks, minimum=1)
        self.settings, self.num_ranks = settings, num_ranks
        self.reset()

    def reset(self) -> None:
        """Begin a wave: every rank calls it when the collective says that all are finished."""
        self.phase = Phase.PREFILL
        self.decode_steps = 0
        self._burst_steps = 0
        self._granted_steps = 1
        self._next_grant = 0
        self._is_mid_prompt = False

    def needs_ballots(self) -> bool:
        """Whether the next decision depends on what ranks know. The same answer on all ranks."""
        if self.num_ranks == 1 or self.phase is Phase.PREFILL:
            return True
        return self._is_point(self.decode_steps + 1)

    def advance(self, ballots: Sequence[Ballot] | None) -> Verdict:
        """Account for the step just run and decide the next.

        Args:
            ballots: one of each rank in rank order, given exactly when `needs_ballots()`.

        Raises:
            VoteError: ballots are given when none were due, or not from every rank, or one holds
                a value that is not allowed.
        """
        self._check(ballots)
        if ballots is None:
            self.decode_steps += 1
            return Verdict(Phase.DECODE, None, False)
        was_empty = self._settle(ballots)
        wanting = [ballot for ballot in ballots if ballot.wants_prefill]
        kind = self._granted(wanting, ballots, was_empty) if wanting else None
        self.phase = Phase.DECODE if kind is None else Phase.PREFILL
        if kind is not None and kind is not Kind.BURST:
            self._burst_steps = 0
            self._granted_steps = max(ballot.prefill_steps for ballot in wanting)
        return Verdict(self.phase, kind, True)

    def decode_on(self) -> Verdict:
        """What `advance` decides after a decode step of a single rank that has no prompt.

        It does without the ballot, since that is so in nearly every step.

        Raises:
            VoteError: more ranks take part, or the step just run was no decode.
        """
        if self.num_ranks > 1 or self.phase is not Phase.DECODE:
            raise VoteError(
                f"{self.num_ranks} ranks go on after a {self.phase.value} step only by ballots."
            )
        self.decode_steps += 1
        return Verdict(Phase.DECODE, None, False)

    def _check(self, ballots: Sequence[Ballot] | None) -> None:
        if (ballots is not None) != self.needs_ballots():
            state = "are due" if ballots is None else "are not due"
            raise VoteError(f"ballots {state} after {self.decode_steps} decode steps.")
        if ballots is not None and len(ballots) != self.num_ranks:
            raise VoteError(f"{len(ballots)} ballots for {self.num_ranks} ranks.")
        for rank, ballot in enumerate(ballots or ()):
            _check_ballot(rank, ballot)

    def _settle(self, ballots: Sequence[Ballot]) -> bool:
        """Count the step just run. Returns whether it was a prefill in which no rank computed
        anything: it counts as no step at all, and resets nothing."""
        if self.phase is Phase.DECODE:
            self.decode_steps += 1
            return False
        if not any(ballot.prefilled_tokens for ballot in ballots):
            return True
        self.decode_steps = 0
        self._burst_steps += 1
        self._next_grant = self._steps_to_next_grant(ballots)
        self._is_mid_prompt = any(ballot.is_mid_prompt for ballot in ballots)
        return False

    def _goes_on(self) -> bool:
        """Whether a burst that was granted more steps may take one more."""
        limit = min(self._granted_steps, self.settings.max_prefill_steps)
        just_prefilled = self.phase is Phase.PREFILL and self.decode_steps == 0
        return just_prefilled and self._burst_steps < limit

    def _steps_to_next_grant(self, ballots: Sequence[Ballot]) -> int:
        """Decode steps until a prompt goes on, or until the inter-token target has recovered: at
        least one, also while durations are not known yet."""
        settings = self.settings
        if settings.mode == "cadence":
            return settings.resume_interval
        burst_ms = self._burst_steps * max(ballot.prefill_step_us for ballot in ballots) / 1e3
        slack_ms = settings.itl_target_ms - max(ballot.decode_step_us for ballot in ballots) / 1e3
        if burst_ms >= slack_ms * settings.any_interval:
            return settings.any_interval
        return max(1, math.ceil(burst_ms / slack_ms))

    def _is_point(self, step: int) -> bool:
        settings = self.settings
        if step % settings.any_interval == 0:
            return True
        if settings.idle_interval and step % settings.idle_interval == 0:
            return True
        if settings.mode == "slo":
            return step == self._next_grant or step % settings.ballot_interval == 0
        return self._is_all_point(step) or self._is_resume_point(step)

    def _is_all_point(self, step: int) -> bool:
        """Where a prefill runs if every rank wants one. Right after a burst only without a resume
        interval: prompts that keep coming to all ranks would stop decodes for as long."""
        settings = self.settings
        if settings.resume_interval and step in (0, settings.resume_interval):
            return step > 0
        return step % settings.all_interval == 0

    def _is_resume_point(self, step: int) -> bool:
        interval = self._next_grant
        return self._is_mid_prompt and interval > 0 and step > 0 and step % interval == 0

    def _granted(
        self, wanting: Sequence[Ballot], ballots: Sequence[Ballot], was_empty: bool
    ) -> Kind | None:
        settings, step = self.settings, self.decode_steps
        if settings.idle_interval and not any(ballot.has_decodes for ballot in ballots):
            return Kind.BURST if self._goes_on() and not was_empty else Kind.IDLE
        # A rank wanted a prefill and had no room after all. Without a decode in between it could
        # go on like that for ever, while only decodes make room.
        if was_empty:
            return None
        if self._goes_on():
            return Kind.BURST
        if step and step % settings.any_interval == 0:
            return Kind.ANY
        if settings.mode == "slo":
            return self._granted_by_target(wanting, ballots)
        if self._is_resume_point(step) and any(ballot.is_mid_prompt for ballot in wanting):
            return Kind.RESUME
        if self._is_all_point(step) and len(wanting) == len(ballots):
            return Kind.ALL
        return None

    def _granted_by_target(
        self, wanting: Sequence[Ballot], ballots: Sequence[Ballot]
    ) -> Kind | None:
        settings = self.settings
        if self.decode_steps >= self._next_grant:
            return Kind.CREDIT
        # Prompts that are late already must not take every step of a rank that is overloaded.
        if self.decode_steps < settings.ballot_interval:
            return None
        decode_ms = max(ballot.decode_step_us for ballot in ballots) / 1e3
        pause_ms = settings.ballot_interval * decode_ms
        for ballot in wanting:
            prefill_ms = ballot.prefill_steps * ballot.prefill_step_us / 1e3
            if ballot.oldest_wait_ms + pause_ms + prefill_ms > settings.ttft_target_ms:
                return Kind.DEADLINE
        return None
