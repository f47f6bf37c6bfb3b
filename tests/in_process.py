"""An engine in the test's own process, whose scheduler a test can look at and steer."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vllm import LLM, SamplingParams, TokensPrompt


@contextmanager
def engine(folder: Path, **options: Any) -> Iterator[LLM]:
    """An ``LLM`` with settings small enough for tests; it is shut down on leaving."""
    settings = {
        "max_model_len": 1024,
        "max_num_seqs": 64,
        "max_num_batched_tokens": 512,
        "kv_cache_memory_bytes": 1 << 28,
        "enable_prefix_caching": True,
        "disable_log_stats": False,
        "seed": 0,
    }
    llm = LLM(str(folder), **{**settings, **options})
    try:
        yield llm
    finally:
        llm.llm_engine.engine_core.shutdown()
        del llm
        gc.collect()


def scheduler(llm: LLM) -> Any:
    return llm.llm_engine.engine_core.engine_core.scheduler


def set_step_tokens(llm: LLM, num_tokens: int) -> None:
    """Let a step compute at most ``num_tokens`` tokens: longer prompts come in chunks."""
    scheduler(llm).max_num_scheduled_tokens = num_tokens


def run(
    llm: LLM, prompts: list[list[int]], num_tokens: int, **sampling: Any
) -> list[tuple[tuple[int, ...], tuple[float, ...]]]:
    """Greedy tokens and their log-probabilities, per prompt."""
    params = SamplingParams(
        temperature=0, max_tokens=num_tokens, ignore_eos=True, logprobs=0, **sampling
    )
    outputs = llm.generate([TokensPrompt(prompt_token_ids=p) for p in prompts], params)
    return [answer(output) for output in outputs]


def answer(output: Any) -> tuple[tuple[int, ...], tuple[float, ...]]:
    tokens = tuple(output.outputs[0].token_ids)
    logprobs = output.outputs[0].logprobs
    return tokens, tuple(
        entry[token].logprob for entry, token in zip(logprobs, tokens, strict=True)
    )


def forget_prefixes(llm: LLM) -> None:
    assert llm.reset_prefix_cache(), "blocks are still in use"


def counter(llm: LLM, name: str) -> float:
    return sum(metric.value for metric in llm.get_metrics() if metric.name == name)
