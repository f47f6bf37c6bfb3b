"""Times the scheduler mixin around vLLM's: ``mixin_probe.py SETTINGS.json RESULT.json``.

scheduler.py starts it; see ``measure`` for the settings. Every second pair of an engine's steps is
scheduled and updated by vLLM's scheduler alone, so that both are timed on the same requests in the
same minute.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

MEANING = {
    "upstream_us": "vLLM's own call, in steps without this package's scheduler",
    "added_us": "this package's call less vLLM's own two steps later: what a step takes longer; "
    "the mixin has requests fetched from memory, for which vLLM need not wait then, and where "
    "plans shorten drafts, vLLM has fewer to look at",
    "around_us": "this package's call less vLLM's inside it: the mixin's own time",
}
PROMPT_TOKENS = 8
# Prompts are of different lengths, so that every step has as many requests which need a new block.
MOST_PROMPT_TOKENS = PROMPT_TOKENS + 128
WARM_UP_STEPS = 20
_OURS, _UPSTREAM = "ours", "upstream"


def measure(settings: dict[str, Any]) -> dict[str, Any]:
    """Medians of the runs of each case.

    Args:
        settings: ``model`` (folder), ``engine`` (arguments of ``LLM``), ``cases`` (by name: what to
            add to those, and the stand-in's ``drafter``), ``requests``, ``steps`` (timed of each
            kind and run), ``repeats``.
    """
    from vllm import LLM

    from vllm_deepinfer.testing.stand_in import registered

    found = {}
    for name, case in settings["cases"].items():
        with registered():
            llm = LLM(settings["model"], **settings["engine"], **case["engine"])
        if case["drafter"]:
            set_drafter(llm, case["drafter"])
        print(name, flush=True)
        found[name] = {
            "async_scheduling": llm.llm_engine.vllm_config.scheduler_config.async_scheduling,
            "runs": [run(llm, settings) for _ in range(settings["repeats"])],
        }
        llm.llm_engine.engine_core.shutdown()
    return found


def set_drafter(llm: Any, settings: dict[str, Any]) -> None:
    from vllm_deepinfer.testing.stand_in import Settings

    core = llm.llm_engine.engine_core.engine_core
    runner = core.model_executor.driver_worker.worker.model_runner
    runner.speculator.model.settings = Settings(**settings)


def run(llm: Any, settings: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Microseconds of a call, by call and as in ``MEANING``."""
    from vllm import SamplingParams, TokensPrompt

    engine, count = llm.llm_engine, settings["requests"]
    scheduler = engine.engine_core.engine_core.scheduler
    longest = settings["engine"]["max_model_len"] - MOST_PROMPT_TOKENS
    params = SamplingParams(temperature=0, max_tokens=longest, ignore_eos=True)
    names = [f"request-{number}" for number in range(count)]
    for number, name in enumerate(names):
        length = PROMPT_TOKENS + 5 * number % (MOST_PROMPT_TOKENS - PROMPT_TOKENS)
        tokens = [3 + (7 * number + index) % 480 for index in range(length)]
        engine.add_request(name, TokensPrompt(prompt_token_ids=tokens), params)
    for _ in range(WARM_UP_STEPS):
        engine.step()
    with timing(scheduler) as times:
        # One step more: asynchronous scheduling updates a step while the next one runs.
        for step in range(4 * settings["steps"] + 1):
            # The second step of a pair: the first one still meets what the other kind left behind.
            times.begin_step(_UPSTREAM if step // 2 % 2 else _OURS, is_counted=step % 2 == 1)
            engine.step()
            if len(scheduler.running) != count:
                sys.exit(f"{len(scheduler.running)} of {count} requests run in step {step}")
    engine.abort_request(names)
    while engine.has_unfinished_requests():
        engine.step()
    return {call: times.summary(call) for call in ("schedule", "update")}


class Times:
    """Durations of calls of both kinds, and of vLLM's inside ours."""

    def __init__(self) -> None:
        self._us: dict[tuple[str, str], list[float]] = {}
        self._around_us: dict[str, list[float]] = {"schedule": [], "update": []}
        self._inner_us = 0.0
        self._kinds: dict[int, tuple[str, bool]] = {}
        self._next = _OURS, False

    def begin_step(self, kind: str, is_counted: bool) -> None:
        self._next = kind, is_counted

    def inner(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """vLLM's, timed where ours calls it."""

        def timed(*args: Any) -> Any:
            begin_ns = time.perf_counter_ns()
            result = function(*args)
            self._inner_us = (time.perf_counter_ns() - begin_ns) / 1e3
            return result

        return timed

    def schedule(self, by_kind: dict[str, Callable[..., Any]]) -> Callable[..., Any]:
        def timed(*args: Any) -> Any:
            output = self._timed("schedule", self._next, by_kind, *args)
            self._kinds[id(output)] = self._next
            return output

        return timed

    def update(self, by_kind: dict[str, Callable[..., Any]]) -> Callable[..., Any]:
        def timed(scheduler_output: Any, output: Any) -> Any:
            # A step is updated by what scheduled it, which may be another than schedules now.
            kind = self._kinds.pop(id(scheduler_output), (_OURS, False))
            return self._timed("update", kind, by_kind, scheduler_output, output)

        return timed

    def _timed(
        self,
        call: str,
        kind: tuple[str, bool],
        by_kind: dict[str, Callable[..., Any]],
        *args: Any,
    ) -> Any:
        name, is_counted = kind
        begin_ns = time.perf_counter_ns()
        result = by_kind[name](*args)
        spent_us = (time.perf_counter_ns() - begin_ns) / 1e3
        if is_counted:
            self._us.setdefault((call, name), []).append(spent_us)
            if name == _OURS:
                self._around_us[call].append(spent_us - self._inner_us)
        return result

    def summary(self, call: str) -> dict[str, float]:
        ours_us, upstream_us = self._us[call, _OURS], self._us[call, _UPSTREAM]
        added_us = [ours - alone for ours, alone in zip(ours_us, upstream_us, strict=True)]
        return {
            "upstream_us": statistics.median(upstream_us),
            "added_us": statistics.median(added_us),
            "around_us": statistics.median(self._around_us[call]),
        }


@contextmanager
def timing(scheduler: Any) -> Iterator[Times]:
    """Times the scheduler's calls, and lets each step choose whose they are."""
    from vllm.v1.core.sched.scheduler import Scheduler

    times = Times()
    ours = {_OURS: scheduler.schedule}, {_OURS: scheduler.update_from_output}
    bare = Scheduler.schedule, Scheduler.update_from_output
    for by_kind, function in zip(ours, bare, strict=True):
        by_kind[_UPSTREAM] = function.__get__(scheduler)
    with (
        mock.patch.object(Scheduler, "schedule", times.inner(bare[0])),
        mock.patch.object(Scheduler, "update_from_output", times.inner(bare[1])),
        mock.patch.object(scheduler, "schedule", times.schedule(ours[0])),
        mock.patch.object(scheduler, "update_from_output", times.update(ours[1])),
    ):
        yield times


if __name__ == "__main__":
    source, destination = map(Path, sys.argv[1:])
    result = measure(json.loads(source.read_text(encoding="utf-8")))
    destination.write_text(json.dumps(result), encoding="utf-8")
