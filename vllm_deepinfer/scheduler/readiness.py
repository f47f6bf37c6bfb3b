"""What this rank would do with a prefill step: its ballot in the vote."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Iterator
from enum import Enum
from itertools import islice
from typing import Any

from vllm.v1.request import RequestStatus

from vllm_deepinfer.scheduler.phases import has_decodes
from vllm_deepinfer.scheduler.vote import Ballot, Phase

_STEPS_REMEMBERED = 9


class Admission(Enum):
    """Whether a prompt can be given room: now, when others have ended, or in no case."""

    OK = "ok"
    LATER = "later"
    NEVER = "never"


def admission(num_blocks: int, num_free_blocks: int, num_usable_blocks: int) -> Admission:
    """The answer for a request that holds ``num_blocks`` cache blocks at once.

    Source: DeepInfer's behaviour, section 2.1.
    """
    if num_blocks > num_usable_blocks:
        return Admission.NEVER
    return Admission.OK if num_blocks <= num_free_blocks else Admission.LATER


class StepClock:
    """Usual time of steps of each kind: the median of the newest few."""

    def __init__(self) -> None:
        self._times_ms: dict[Phase, deque[float]] = {
            phase: deque(maxlen=_STEPS_REMEMBERED) for phase in Phase
        }

    def observe(self, phase: Phase, step_ms: float) -> None:
        self._times_ms[phase].append(step_ms)

    def usual_us(self, phase: Phase) -> int:
        """Microseconds; 0 before the first step of the kind."""
        times_ms = self._times_ms[phase]
        return round(1e3 * statistics.median(times_ms)) if times_ms else 0


def local_ballot(
    scheduler: Any,
    kv_watermark: float,
    max_prefill_steps: int,
    clock: StepClock,
    oldest_wait_ms: float,
    prefilled_tokens: int,
) -> Ballot:
    """What this rank knows.

    Args:
        scheduler: vLLM's, between two steps.
        kv_watermark: share of the cache in use above which no prompt is begun or continued while
            there are decodes that will free some.
        max_prefill_steps: more are not counted.
        oldest_wait_ms: age of the oldest prompt without a first token.
        prefilled_tokens: prompt tokens computed in the step just run.
    """
    decodes = has_decodes(scheduler)
    has_room = not decodes or scheduler.kv_cache_manager.usage <= kv_watermark
    step_tokens = scheduler.max_num_scheduled_tokens
    tokens = pending_prompt_tokens(scheduler, max_prefill_steps * step_tokens)
    is_unpaused = scheduler._pause_state.value == 0
    return Ballot(
        wants_prefill=int(has_room and tokens > 0 and is_unpaused),
        has_decodes=int(decodes),
        is_mid_prompt=int(any(request.is_prefill_chunk for request in scheduler.running)),
        prefill_steps=-(-tokens // step_tokens),
        prefilled_tokens=prefilled_tokens,
        oldest_wait_ms=round(oldest_wait_ms),
        decode_step_us=clock.usual_us(Phase.DECODE),
        prefill_step_us=clock.usual_us(Phase.PREFILL),
    )


def pending_prompt_tokens(scheduler: Any, limit: int) -> int:
    """Prompt tokens that running requests and those there are places for still need, at most
    ``limit``. A prefix that is cached counts until the request runs."""
    if not limit:
        return 0
    tokens = sum(
        r.num_tokens - r.num_computed_tokens for r in scheduler.running if r.is_prefill_chunk
    )
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
