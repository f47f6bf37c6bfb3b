"""Steps of one kind only, around vLLM's own ``schedule``: its state is edited and put back.

A step of one kind keeps every rank's batch uniform: decode steps meet no prompt, and prompts are
computed in steps that all ranks take together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from vllm.v1.core.sched.interface import PauseState

from vllm_deepinfer.scheduler.vote import Phase

Schedule = Callable[[bool], Any]


def schedule_in_phase(scheduler: Any, schedule: Schedule, phase: Phase, is_strict: bool) -> Any:
    """vLLM's scheduler output for one step.

    Args:
        scheduler: vLLM's.
        schedule: its own ``schedule``, which takes ``throttle_prefills``.
        phase: in a decode step nothing of a prompt is computed.
        is_strict: keep decodes out of prefill steps, too.
    """
    if phase is Phase.DECODE:
        return _schedule_decodes(scheduler, schedule)
    if not is_strict:
        return schedule(False)
    with _decodes_hidden(scheduler):
        return schedule(False)


def has_decodes(scheduler: Any) -> bool:
    """Whether a running request has its prompt behind it."""
    return any(not request.is_prefill_chunk for request in scheduler.running)


def _schedule_decodes(scheduler: Any, schedule: Schedule) -> Any:
    # Throttling lets prompts through after a step that could not admit all of them, and where
    # nothing decodes.
    scheduler.prefill_capacity_bound = False
    if has_decodes(scheduler):
        return schedule(True)
    pause_state, scheduler._pause_state = scheduler._pause_state, PauseState.PAUSED_ALL
    try:
        return schedule(True)
    finally:
        scheduler._pause_state = pause_state


@contextmanager
def _decodes_hidden(scheduler: Any) -> Iterator[None]:
    """Takes decodes out of the running requests; they keep their places in the batch."""
    decodes = [request for request in scheduler.running if not request.is_prefill_chunk]
    places = scheduler.max_num_active_reqs
    scheduler.running = [request for request in scheduler.running if request.is_prefill_chunk]
    scheduler.max_num_active_reqs = places - len(decodes)
    try:
        yield
    finally:
        scheduler.max_num_active_reqs = places
        scheduler.running = decodes + scheduler.running
