"""A prompt that could never be computed is refused; it does not wait for ever among others.

The vote only tells now from later: this holds what it relies on. If this breaks, a request waits
without an answer, and its rank asks for prefill steps that compute nothing.
"""

from __future__ import annotations

import pytest
from drafting.stand_in_engine import expected, generate, prompt, sampling
from in_process import engine
from vllm import TokensPrompt
from vllm.exceptions import VLLMValidationError

from vllm_deepinfer.testing.stand_in import make_stand_in, registered

VOTING = {"additional_config": {"deepinfer": {"prefill_vote": "cadence"}}}


def test_a_prompt_longer_than_the_limit_is_refused_on_arrival(stand_ins):
    llm = stand_ins(0, max_model_len=256, num_gpu_blocks_override=24, **VOTING)
    with pytest.raises(VLLMValidationError, match="256"):
        llm.generate(TokensPrompt(prompt_token_ids=prompt(300, 1)), sampling(4), use_tqdm=False)
    longest = [prompt(250, 2)]
    assert generate(llm, longest, sampling(6)) == expected(longest, 6)


def test_a_cache_too_small_for_the_longest_prompt_is_refused_at_start(tmp_path):
    make_stand_in(tmp_path)
    options = {"max_model_len": 1024, "num_gpu_blocks_override": 5, **VOTING}
    with (
        registered(),
        pytest.raises(ValueError, match=r"(?i)max.*model.*len"),
        engine(tmp_path, kv_cache_memory_bytes=1 << 23, **options),
    ):
        pass
