"""Drafting costs no prefix-cache hit: the drafter's rows are found with the target's.

If this fails, a drafter halves the cache silently: its cache group vetoes blocks all others have.
"""

from __future__ import annotations

import numpy as np
import pytest
from in_process import engine
from vllm import SamplingParams, TokensPrompt

BLOCK_TOKENS = 128
RNG = np.random.default_rng(17)


@pytest.fixture(scope="module")
def llm(tiny_folder):
    drafting = {"method": "dspark", "num_speculative_tokens": 5}
    with engine(tiny_folder, speculative_config=drafting) as llm:
        yield llm


def cached_tokens(llm, prompt):
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
    return llm.generate([TokensPrompt(prompt_token_ids=prompt)], params)[0].num_cached_tokens


@pytest.mark.parametrize("length", [129, 200, 256, 257, 300])
def test_every_whole_block_before_the_last_token_hits(llm, length):
    prompt = RNG.integers(3, 430, length).tolist()
    assert cached_tokens(llm, prompt) == 0
    assert cached_tokens(llm, prompt) == (length - 1) // BLOCK_TOKENS * BLOCK_TOKENS
