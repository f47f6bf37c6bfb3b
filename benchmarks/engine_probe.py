"""Measures one engine in this process: `engine_probe.py SETTINGS.json RESULT.json`.

serving.py starts it, with the environment that belongs to the engine; see `main` for the settings.
"""

from __future__ import annotations

import time

# First of all: what follows is part of the engine's start.
_BEGIN_S = time.monotonic()

import json  # noqa: E402
import random  # noqa: E402
import sys  # noqa: E402
from dataclasses import asdict, dataclass  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import TYPE_CHECKING, Any  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

    from vllm import LLM

# Any ids will do that are not control tokens of the tiny tokenizer.
FIRST_TOKEN_ID, LAST_TOKEN_ID = 3, 490
WARM_UP_TOKENS = 4


@dataclass(frozen=True)
class Run:
    """One measured run: ``tokens`` computed in ``seconds``; ``cpu_seconds`` of all threads.

    Where ``cpu_seconds`` is clearly below ``seconds`` (per thread), other work held this up.
    """

    tokens: int
    seconds: float
    cpu_seconds: float
    steps: int

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds


class Probe:
    """Drives an engine step by step with random prompts, none of which shares a prefix."""

    def __init__(self, llm: LLM, seed: int) -> None:
        self.llm, self.engine = llm, llm.llm_engine
        self._random = random.Random(seed)
        self._num_requests = 0
        self.on_measuring: Callable[[], None] = lambda: None
        """Called when the preparation of a run is over."""

    def prefill(self, prompt_tokens: int) -> Run:
        """From handing over one prompt to its first token."""
        self.on_measuring()
        start = _Clock()
        steps = self._until_first_tokens(1, prompt_tokens, new_tokens=1)
        return start.run(prompt_tokens, steps)

    def decode(self, batch: int, prompt_tokens: int, new_tokens: int) -> Run:
        """All steps after the one in which the last of ``batch`` requests got its first token."""
        self._until_first_tokens(batch, prompt_tokens, new_tokens)
        self.on_measuring()
        start, steps, tokens = _Clock(), 0, 0
        while self.engine.has_unfinished_requests():
            tokens += sum(self._step().values())
            steps += 1
        return start.run(tokens, steps)

    def _until_first_tokens(self, batch: int, prompt_tokens: int, new_tokens: int) -> int:
        waiting = {self._add(prompt_tokens, new_tokens) for _ in range(batch)}
        steps = 0
        while waiting:
            waiting -= self._step().keys()
            steps += 1
        return steps

    def _add(self, prompt_tokens: int, new_tokens: int) -> str:
        from vllm import SamplingParams, TokensPrompt
        from vllm.sampling_params import RequestOutputKind

        self._num_requests += 1
        name = str(self._num_requests)
        ids = [self._random.randint(FIRST_TOKEN_ID, LAST_TOKEN_ID) for _ in range(prompt_tokens)]
        params = SamplingParams(
            temperature=0,
            max_tokens=new_tokens,
            ignore_eos=True,
            output_kind=RequestOutputKind.DELTA,
        )
        self.engine.add_request(name, TokensPrompt(prompt_token_ids=ids), params)
        return name

    def _step(self) -> dict[str, int]:
        """New tokens by request."""
        outputs = self.engine.step()
        return {output.request_id: len(output.outputs[0].token_ids) for output in outputs}


class _Clock:
    def __init__(self) -> None:
        self._cpu_s, self._wall_s = time.process_time(), time.perf_counter()

    def run(self, tokens: int, steps: int) -> Run:
        wall_s = time.perf_counter() - self._wall_s
        return Run(tokens, wall_s, time.process_time() - self._cpu_s, steps)


def main(settings: dict[str, Any]) -> dict[str, Any]:
    """Start the engine, measure it, and profile it if asked.

    Args:
        settings: ``model`` (folder), ``engine`` (arguments of ``LLM``), ``process_start_s`` (on the
            monotonic clock), ``seed``, ``repeats``, ``measures`` (name to method of `Probe` and its
            arguments), ``profile`` (whether to time the parts of a step).
    """
    from vllm import LLM

    imported_s = time.monotonic()
    llm = LLM(settings["model"], **settings["engine"])
    ready_s = time.monotonic()
    probe = Probe(llm, settings["seed"])
    probe.prefill(WARM_UP_TOKENS)
    first_token_s = time.monotonic()
    result = {
        "start": {
            "interpreter_s": _BEGIN_S - settings["process_start_s"],
            "import_vllm_s": imported_s - _BEGIN_S,
            "llm_constructor_s": ready_s - imported_s,
            "process_to_ready_s": ready_s - settings["process_start_s"],
            "first_token_s": first_token_s - ready_s,
        },
        "runs": {name: [] for name in settings["measures"]},
        "platform": _platform_name(),
    }
    for name, (method, arguments) in settings["measures"].items():
        for repeat in range(settings["repeats"]):
            print(f"{name}, run {repeat + 1} of {settings['repeats']}", flush=True)
            result["runs"][name].append(asdict(getattr(probe, method)(**arguments)))
    result["own_peak_rss_bytes"] = _own_peak_rss_bytes()
    if settings["profile"]:
        from step_profile import profile

        result["profile"] = {
            name: profile(probe, method, arguments)
            for name, (method, arguments) in settings["measures"].items()
        }
    llm.llm_engine.engine_core.shutdown()
    return result


def _platform_name() -> str:
    from vllm.platforms import current_platform

    return type(current_platform).__qualname__


def _own_peak_rss_bytes() -> int:
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/self/status has no VmHWM; peak memory needs a Linux kernel")


if __name__ == "__main__":
    source, destination = map(Path, sys.argv[1:])
    found = main(json.loads(source.read_text(encoding="utf-8")))
    destination.write_text(json.dumps(found), encoding="utf-8")
