"""A request that does not fit the model runner's tables is refused, and the engine goes on.

The runner raises in the worker when one of them overflows, which would end every other request. If
a test here fails, one client can take the server down.
"""

from __future__ import annotations

import pytest
from in_process import engine
from vllm import SamplingParams, TokensPrompt
from vllm.exceptions import VLLMValidationError

from vllm_deepinfer.platforms import request_limits

PROMPT = TokensPrompt(prompt_token_ids=[5, 6, 7])
TOO_MANY = {
    "allowed_token_ids": {"allowed_token_ids": [5 + i % 400 for i in range(1025)]},
    "logit_bias": {"logit_bias": dict.fromkeys(range(1025), 0.0)},
    "stop_token_ids": {"stop_token_ids": list(range(3, 132)), "min_tokens": 2},
    "logprob_token_ids": {"logprob_token_ids": list(range(129))},
    "bad_words": {"bad_words": [f"word {i}" for i in range(513)]},
    "bad_words tokens": {"bad_words": ["x" * 9000]},
}
MOST = {
    "stop_token_ids": {"stop_token_ids": list(range(3, 127)), "min_tokens": 2},
    "logprob_token_ids": {"logprob_token_ids": list(range(128))},
    "bad_words": {"bad_words": [f"word {i}" for i in range(512)]},
    "bad_words tokens": {"bad_words": ["x" * 8000]},
}


@pytest.fixture(scope="module")
def llm(tiny_folder):
    with engine(tiny_folder) as llm:
        yield llm


def generate(llm, **options):
    params = SamplingParams(max_tokens=3, ignore_eos=True, **options)
    return llm.generate([PROMPT], params)[0].outputs[0].token_ids


@pytest.mark.parametrize("name", TOO_MANY)
def test_too_many_entries_are_refused_by_parameter(llm, name):
    with pytest.raises((VLLMValidationError, ValueError), match=name.split()[0]):
        generate(llm, **TOO_MANY[name])
    assert len(generate(llm)) == 3


@pytest.mark.parametrize("name", MOST)
def test_as_many_as_allowed_are_served(llm, name):
    assert len(generate(llm, **MOST[name])) == 3


def test_limits_are_vllms():
    from vllm import sampling_params
    from vllm.v1.worker.gpu.sample import logit_bias

    assert request_limits.MAX_ALLOWED_TOKEN_IDS == logit_bias.MAX_NUM_ALLOWED_TOKEN_IDS
    assert request_limits.MAX_LOGIT_BIASES == logit_bias.MAX_NUM_LOGIT_BIAS_TOKENS
    assert request_limits.MAX_STOP_TOKEN_IDS == logit_bias.MAX_NUM_STOP_TOKEN_IDS
    assert request_limits.MAX_LOGPROB_TOKEN_IDS == sampling_params.MAX_LOGPROB_TOKEN_IDS
