"""Engines with and without drafting, and what a test compares of their answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from in_process import engine, scheduler
from vllm import LLM, SamplingParams, TokensPrompt

NUM_DRAFTS = 5
SETTINGS = {
    "kv_cache_memory_bytes": 1 << 26,
    "additional_config": {"deepinfer": {"batch_invariant": True}},
}


def plain_engine(folder: Path, **options: Any):
    return engine(folder, **{**SETTINGS, **options})


def drafting_engine(folder: Path, num_drafts: int = NUM_DRAFTS, **options: Any):
    speculative = {"method": "dspark", "num_speculative_tokens": num_drafts}
    return plain_engine(folder, speculative_config=speculative, **options)


@contextmanager
def both_engines(folder: Path, **options: Any) -> Iterator[tuple[LLM, LLM]]:
    with plain_engine(folder, **options) as plain, drafting_engine(folder, **options) as drafting:
        yield plain, drafting


class Verifications:
    """Drafts offered and accepted per request since this was made, from the scheduler's ledger."""

    def __init__(self, llm: LLM) -> None:
        self.offered: Counter[str] = Counter()
        self.accepted: Counter[str] = Counter()
        self.blocks: list[tuple[int, int]] = []
        self._ledger = scheduler(llm).parts.ledger
        self._settle = self._ledger.settle

    def __enter__(self) -> Verifications:
        self._ledger.settle = self._note
        return self

    def __exit__(self, *_: object) -> None:
        del self._ledger.settle

    def _note(
        self, request_ids: Sequence[str], offered: Sequence[int], accepted: Sequence[int]
    ) -> None:
        for request_id, length, survived in zip(request_ids, offered, accepted, strict=True):
            # The engine appends its own suffix to the request's name.
            name = request_id.split("-")[0]
            self.offered[name] += length
            self.accepted[name] += survived
            self.blocks.append((length, survived))
        self._settle(request_ids, offered, accepted)


def random_prompt(seed: int, num_tokens: int) -> list[int]:
    return np.random.default_rng(seed).integers(3, 500, num_tokens).tolist()


def sampling(num_tokens: int = 10, **options: Any) -> SamplingParams:
    """Greedy unless ``temperature`` says otherwise; with log-probabilities of two alternatives."""
    settings = {"temperature": 0.0, "max_tokens": num_tokens, "ignore_eos": True, "logprobs": 2}
    return SamplingParams(**{**settings, **options})


Request = tuple[list[int], SamplingParams]


def generate(llm: LLM, requests: list[Request]) -> list[Any]:
    prompts = [TokensPrompt(prompt_token_ids=prompt) for prompt, _ in requests]
    return llm.generate(prompts, [params for _, params in requests], use_tqdm=False)


def seen(output: Any) -> dict[str, Any]:
    """All of an answer that a client sees, floats unrounded."""
    return {
        "completions": [
            {
                "tokens": tuple(completion.token_ids),
                "text": completion.text,
                "logprobs": logprob_rows(completion.logprobs),
                "ended": (completion.finish_reason, completion.stop_reason),
            }
            for completion in output.outputs
        ],
        "prompt_logprobs": logprob_rows(output.prompt_logprobs),
    }


def logprob_rows(rows: Any) -> list[Any] | None:
    if rows is None:
        return None
    return [
        None if row is None else [(token, row[token].logprob, row[token].rank) for token in row]
        for row in rows
    ]


def tokens(output: Any) -> tuple[int, ...]:
    return tuple(output.outputs[0].token_ids)


def compare(plain: LLM, drafting: LLM, requests: list[Request]) -> list[Any]:
    """Answers of both engines must be equal and drafts accepted; returns the drafting ones."""
    wanted = generate(plain, requests)
    with Verifications(drafting) as verifications:
        found = generate(drafting, requests)
    assert [seen(output) for output in found] == [seen(output) for output in wanted]
    assert sum(verifications.accepted.values()) > 0
    return found
