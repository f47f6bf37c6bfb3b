"""What this rank would do with a prefill step: its ballot in the vote.

A prompt is admitted now or later here, never refused: vLLM refuses one longer than the model's
limit when it arrives, and does not start with a cache too small for one of that length.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

from vllm.v1.core.sched.interface import PauseState
from vllm.v1.request import RequestStatus

from vllm_deepinfer.scheduler.vote import Ballot, Phase

_STEPS_REMEMBERED = 9


class RunningRequests(NamedTuple):
    """What one look at vLLM's running requests tells of them.

    started: those whose prompt was begun and not finished.
    context_tokens: computed tokens of all.
    drafted: those with drafts to verify; left empty where nothing plans.
    """

    started: list[Any]
    context_tokens: int
    drafted: Sequence[Any] = ()


class StepClock:
    """Usual time of steps of each kind: the median of the newest few."""

    def __init__(self) -> None:
        self._times_ms: dict[Phase, deque[float]] = {
            phase: deque(maxlen=_STEPS_REMEMBERED) for phase in Phase
        }
        self._usual_us = dict.fromkeys(Phase, 0)

    def observe(self, phase: Phase, step_ms: float) -> None:
        """A step of this kind took so long."""
        times_ms = self._times_ms[phase]
        times_ms.append(step_ms)
        self._usual_us[phase] = round(1e3 * _median(times_ms))

    def usual_us(self, phase: Phase) -> int:
        """Microseconds; 0 before the first step of the kind."""
        return self._usual_us[phase]


def _median(values: Iterable[float]) -> float:
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def local_ballot(
    scheduler: Any,
    started: list[Any],
    kv_watermark: float,
    max_prefill_steps: int,
    clock: StepClock,
    oldest_wait_ms: float,
    prefilled_tokens: int,
) -> Ballot:
    """What this rank knows.

    Args:
        scheduler: vLLM's, between two steps.
        started: its running requests whose prompt was begun and not finished.
        kv_watermark: share of the cache in use above which no prompt is begun or continued while
            there are decodes that will free some.
        max_prefill_steps: more are not counted.
        oldest_wait_ms: age of the oldest prompt without a first token.
        prefilled_tokens: prompt tokens computed in the step just run.
    """
    decodes = len(scheduler.running) > len(started)
    step_tokens = scheduler.max_num_scheduled_tokens
    tokens = pending_prompt_tokens(scheduler, started, max_prefill_steps * step_tokens)
    wants_prefill = (
        tokens > 0
        and (not decodes or scheduler.kv_cache_manager.usage <= kv_watermark)
        and scheduler._pause_state == PauseState.UNPAUSED
    )
    return Ballot(
        wants_prefill=int(wants_prefill),
        has_decodes=int(decodes),
        is_mid_prompt=int(bool(started)),
        prefill_steps=-(-tokens // step_tokens),
        prefilled_tokens=prefilled_tokens,
        oldest_wait_ms=round(oldest_wait_ms),
        decode_step_us=clock.usual_us(Phase.DECODE),
        prefill_step_us=clock.usual_us(Phase.PREFILL),
    )


def pending_prompt_tokens(scheduler: Any, started: list[Any], limit: int) -> int:
    """Prompt tokens that running requests and those there are places for still need, at most
    ``limit``. A prefix that is cached counts until the request runs."""
    if not limit:
        return 0
    tokens = sum([request.num_tokens - request.num_computed_tokens for request in started])
    if scheduler.waiting:
        for request in _ready(scheduler):
            if tokens >= limit:
                break
            tokens += request.num_tokens
    return min(tokens, limit)


def _ready(scheduler: Any) -> Iterator[Any]:
    """Waiting requests that could start, in order, as many as there are places for."""
    places = (
        scheduler.max_num_active_reqs
        - len(scheduler.running)
        - scheduler.num_waiting_for_streaming_input
    )
    ready = (request for request in scheduler.waiting if _is_ready(request))
    return islice(ready, max(places, 0))


def _is_ready(request: Any) -> bool:
    if request.status is RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR:
        # A grammar that failed to compile is ready, too: the schedule that meets it reports it.
        return request.structured_output_request.grammar is not None
    return request.status in (RequestStatus.WAITING, RequestStatus.PREEMPTED)
