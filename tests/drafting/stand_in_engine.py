"""Engines with stand-in models, and what they must say and count, by replay of the law."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import in_process
import numpy as np
from vllm import LLM, SamplingParams, TokensPrompt

from vllm_deepinfer.testing.stand_in import Settings, drafts, registered
from vllm_deepinfer.testing.stand_in.law import BLOCK, greedy_text


@contextmanager
def stand_in_engine(folder: Path, num_drafts: int, **options: Any) -> Iterator[LLM]:
    """An in-process engine; ``num_drafts`` of 0 drafts nothing."""
    settings: dict[str, Any] = {"kv_cache_memory_bytes": 1 << 23}
    if num_drafts:
        settings["speculative_config"] = {
            "method": "dspark",
            "num_speculative_tokens": num_drafts,
        }
    with registered(), in_process.engine(folder, **{**settings, **options}) as llm:
        yield llm


def runner(llm: LLM) -> Any:
    executor = llm.llm_engine.engine_core.engine_core.model_executor
    return executor.driver_worker.worker.model_runner


def drafter(llm: LLM) -> Any:
    return runner(llm).speculator.model


def num_faults(llm: LLM) -> int:
    """KV rows found wrong by either model."""
    speculator = runner(llm).speculator
    return runner(llm).model.num_faults + (speculator.model.num_faults if speculator else 0)


def behave(llm: LLM, **settings: Any) -> Settings:
    """Replace the drafter's settings, if there is one, and forget all prefixes."""
    made = Settings(**settings)
    if runner(llm).speculator is not None:
        drafter(llm).settings = made
    in_process.forget_prefixes(llm)
    return made


def prompt(length: int, salt: int) -> list[int]:
    return np.random.default_rng([length, salt]).integers(3, 490, length).tolist()


def sampling(num_tokens: int, **options: Any) -> SamplingParams:
    return SamplingParams(
        **{"temperature": 0, "max_tokens": num_tokens, "ignore_eos": True, **options}
    )


def generate(llm: LLM, prompts: list[list[int]], params: Any) -> list[list[int]]:
    inputs = [TokensPrompt(prompt_token_ids=tokens) for tokens in prompts]
    outputs = llm.generate(inputs, params, use_tqdm=False)
    return [list(output.outputs[0].token_ids) for output in outputs]


def expected(prompts: list[list[int]], num_tokens: int) -> list[list[int]]:
    return [greedy_text(0, tokens[-1], num_tokens) for tokens in prompts]


@dataclass
class Counts:
    """Per position of the block."""

    offered: list[int] = field(default_factory=lambda: [0] * BLOCK)
    accepted: list[int] = field(default_factory=lambda: [0] * BLOCK)
    confidence: list[float] = field(default_factory=lambda: [0.0] * BLOCK)


def replay(settings: Settings, prompts: list[list[int]], num_tokens: int, drafts_: int) -> Counts:
    """What the verification of greedy requests must count, block by block."""
    counts = Counts()
    for tokens in prompts:
        text = greedy_text(settings.seed, tokens[-1], num_tokens + BLOCK)
        emitted = 1
        while emitted < num_tokens:
            position = np.array([len(tokens) + emitted - 1])
            block = drafts(settings, position, np.array([text[emitted - 1]]), drafts_)
            survived = int(block.right[0].cumprod().sum())
            for index in range(drafts_):
                counts.offered[index] += 1
                counts.accepted[index] += index < survived
                counts.confidence[index] += 1 / (1 + np.exp(-float(block.logits[0, index])))
            emitted += survived + 1
    return counts


def counted(counters: Any, drafts_: int) -> Counts:
    """The same from the scheduler's counters."""

    def values(kind: str) -> list[float]:
        return [counters[f"draft_{kind}_{index}"] for index in range(drafts_)]

    return Counts(
        [int(value) for value in values("offered")],
        [int(value) for value in values("accepted")],
        values("confidence"),
    )


def counted_since(before: Counts, now: Counts) -> Counts:
    def differences(name: str) -> list[Any]:
        pairs = zip(getattr(before, name), getattr(now, name), strict=True)
        return [later - earlier for earlier, later in pairs]

    return Counts(*(differences(name) for name in ("offered", "accepted", "confidence")))
