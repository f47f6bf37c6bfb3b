"""Engines of ``gpu_parts.py``: greedy tokens by this package's class of the model."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any


def greedy_tokens(
    checkpoint: Path, prompts: list[list[int]], num_drafts: int, options: dict[str, Any]
) -> list[list[int]]:
    """32 tokens a prompt, from an engine in this process.

    Args:
        num_drafts: 0 for none.
        options: this package's.
    """
    from vllm import LLM, SamplingParams, TokensPrompt

    drafting = {"method": "dspark", "num_speculative_tokens": num_drafts}
    llm = LLM(
        str(checkpoint),
        speculative_config=drafting if num_drafts else None,
        additional_config={"deepinfer": options},
        max_model_len=1024,
        max_num_seqs=8,
        max_num_batched_tokens=256,
        gpu_memory_utilization=0.3,
        seed=0,
    )
    try:
        params = SamplingParams(temperature=0, max_tokens=32, ignore_eos=True)
        outputs = llm.generate([TokensPrompt(prompt_token_ids=ids) for ids in prompts], params)
        return [list(output.outputs[0].token_ids) for output in outputs]
    finally:
        llm.llm_engine.engine_core.shutdown()
        del llm
        gc.collect()
