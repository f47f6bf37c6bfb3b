"""Where the time of an engine step goes, by wrapping methods of a live engine.

Each part counts its own time only: what it calls and is a part itself is counted there. Wrapping
costs about a microsecond a call; a step has about twenty wrapped calls.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engine_probe import Probe
    from vllm import LLM

MODEL, RUNNER, ENGINE = "model", "runner", "engine"


@dataclass(frozen=True)
class Part:
    """A wrapped method: ``owner`` has the attribute ``method``; ``group`` is where it counts."""

    group: str
    name: str
    owner: Any
    method: str


class ExclusiveTimer:
    """Own seconds of each part, for calls that nest; threads are timed separately and added."""

    def __init__(self) -> None:
        self.seconds: dict[tuple[str, str], float] = defaultdict(float)
        self.calls: dict[tuple[str, str], int] = defaultdict(int)
        self._local = threading.local()

    def reset(self) -> None:
        """Forget what was timed; no wrapped call may be running."""
        self.seconds.clear()
        self.calls.clear()

    def wrap(self, part: Part, function: Callable) -> Callable:
        key = (part.group, part.name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            inner = self._stack()
            inner.append(0.0)
            start = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                spent = time.perf_counter() - start
                self.seconds[key] += spent - inner.pop()
                self.calls[key] += 1
                if inner:
                    inner[-1] += spent

        return timed

    def _stack(self) -> list[float]:
        """Seconds spent in wrapped calls below each wrapped call that is running."""
        if not hasattr(self._local, "stack"):
            self._local.stack = []
        return self._local.stack


def parts(llm: LLM) -> list[Part]:
    """The parts of a step of an in-process engine with vLLM's V2 model runner."""
    from vllm.v1.worker.gpu.async_utils import AsyncOutput

    engine = llm.llm_engine
    core = engine.engine_core.engine_core
    runner = core.model_executor.driver_worker.worker.model_runner
    return [
        Part(MODEL, "forward", runner.model, "forward"),
        Part(MODEL, "logits", runner.model, "compute_logits"),
        Part(RUNNER, "requests and blocks", runner, "add_requests"),
        Part(RUNNER, "requests and blocks", runner, "update_requests"),
        Part(RUNNER, "requests and blocks", runner, "finish_requests"),
        Part(RUNNER, "requests and blocks", runner.block_tables, "apply_staged_writes"),
        Part(RUNNER, "input preparation", runner, "prepare_inputs"),
        Part(RUNNER, "block tables and slots", runner, "prepare_attn"),
        Part(RUNNER, "attention metadata", runner.model_state, "prepare_attn"),
        Part(RUNNER, "n-grams", runner.model_state, "prepare_inputs"),
        Part(RUNNER, "sampling", runner, "sample"),
        Part(RUNNER, "prompt log-probs", runner.prompt_logprobs_worker, "compute_prompt_logprobs"),
        Part(RUNNER, "state update", runner, "postprocess_sampled"),
        Part(RUNNER, "results to host", AsyncOutput, "get_output"),
        Part(RUNNER, "rest of execute_model", runner, "execute_model"),
        Part(RUNNER, "rest of sample_tokens", runner, "sample_tokens"),
        Part(ENGINE, "schedule", core.scheduler, "schedule"),
        Part(ENGINE, "update from output", core.scheduler, "update_from_output"),
        Part(ENGINE, "rest of the core", core, "step_fn"),
        Part(ENGINE, "detokenising", engine.output_processor, "process_outputs"),
        Part(ENGINE, "rest", engine, "step"),
    ]


@contextmanager
def timing(wrapped: list[Part]):
    """Time the parts within the block; yields the timer."""
    timer = ExclusiveTimer()
    with ExitStack() as undo:
        for part in wrapped:
            owned = part.method in vars(part.owner)
            original = getattr(part.owner, part.method)
            setattr(part.owner, part.method, timer.wrap(part, original))
            if owned:
                undo.callback(setattr, part.owner, part.method, original)
            else:
                undo.callback(delattr, part.owner, part.method)
        yield timer


def profile(probe: Probe, method: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Milliseconds a step and share of the step of each part and group, in one run of a measure.

    Returns:
        ``steps``, ``step_ms``, ``groups`` and ``parts``, each of the latter two a list of ``ms`` a
        step and ``share`` of the step, by name.
    """
    with timing(parts(probe.llm)) as timer:
        probe.on_measuring = timer.reset
        getattr(probe, method)(**arguments)
    steps = timer.calls[RUNNER, "sampling"]
    total_s = sum(timer.seconds.values())

    def entry(seconds: float, **names: str) -> dict[str, Any]:
        return {**names, "ms": 1e3 * seconds / steps, "share": seconds / total_s}

    groups: dict[str, float] = defaultdict(float)
    for (group, _), seconds in timer.seconds.items():
        groups[group] += seconds
    return {
        "steps": steps,
        "step_ms": 1e3 * total_s / steps,
        "groups": [entry(groups[group], group=group) for group in (MODEL, RUNNER, ENGINE)],
        "parts": [
            entry(seconds, group=group, part=name)
            for (group, name), seconds in sorted(timer.seconds.items(), key=lambda item: -item[1])
        ],
    }
