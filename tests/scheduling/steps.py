"""What an engine's scheduler gave out, step by step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from in_process import scheduler
from vllm import LLM

from vllm_deepinfer.scheduler.vote import Phase


@dataclass
class Step:
    """phase: as voted, None without a vote. prompts, decodes: requests of either kind. num_drafts:
    drafts verified of each decode. waiting: requests that had room and did not start."""

    phase: Phase | None
    prompts: int
    decodes: int
    num_drafts: list[int]
    waiting: int


@dataclass
class Steps:
    steps: list[Step] = field(default_factory=list)

    def longest_wait(self) -> int:
        """Most decode steps in a row with a prompt left waiting."""
        longest = waited = 0
        for step in self.steps:
            waited = waited + 1 if step.waiting and not step.prompts else 0
            longest = max(longest, waited)
        return longest

    def longest_prefill(self) -> int:
        """Most steps in a row without a decode, while requests decode."""
        longest = run = 0
        for before, step in zip(self.steps, self.steps[1:], strict=False):
            run = run + 1 if before.decodes + run and not step.decodes else 0
            longest = max(longest, run)
        return longest


@contextmanager
def recorded(llm: LLM) -> Iterator[Steps]:
    """Records every step that computes something."""
    target, found = scheduler(llm), Steps()
    schedule = target.schedule

    def recording(*args: Any, **kwargs: Any) -> Any:
        started = {r.request_id for r in target.running if r.is_prefill_chunk}
        output = schedule(*args, **kwargs)
        if output.num_scheduled_tokens:
            found.steps.append(step_of(target, started, output))
        return output

    target.schedule = recording
    try:
        yield found
    finally:
        del target.schedule


def step_of(target: Any, started: set[str], output: Any) -> Step:
    phase = None if target.prefill_vote is None else target.prefill_vote.phase
    tokens, drafts = output.num_scheduled_tokens, output.scheduled_spec_decode_tokens
    new = started | {request.req_id for request in output.scheduled_new_reqs}
    prompts = tokens.keys() & new
    if phase is Phase.DECODE:
        # A prompt whose prefix is cached up to its last token is a decode like any other.
        prompts = {name for name in prompts if tokens[name] > 1 + len(drafts.get(name, ()))}
    decodes = tokens.keys() - prompts
    room = target.max_num_running_reqs - len(target.running)
    return Step(
        phase,
        len(prompts),
        len(decodes),
        [len(drafts.get(name, ())) for name in decodes],
        min(len(target.waiting), room),
    )
