"""Limits crossed inside an accepted run cut at the same token as without drafting.

``max_model_len`` ends a request and a thinking budget forces the end of the thought while several
tokens may be accepted at once. If one fails, a request overruns its limit by the rest of a run.
"""

from __future__ import annotations

import pytest
from drafting.comparison import both_engines, compare, random_prompt, sampling, tokens

MAX_MODEL_LEN_TOKENS = 24


@pytest.fixture(scope="module")
def engines(tiny_folder):
    options = {"max_model_len": MAX_MODEL_LEN_TOKENS, "reasoning_parser": "deepseek_v41"}
    with both_engines(tiny_folder, **options) as engines:
        yield engines


def test_max_model_len_inside_a_run(engines):
    prompt = random_prompt(20, 23)
    lengths = range(13, 24, 2)
    requests = [(prompt[:length], sampling(100)) for length in lengths]
    for length, output in zip(lengths, compare(*engines, requests), strict=True):
        assert len(tokens(output)) == MAX_MODEL_LEN_TOKENS - length
        assert output.outputs[0].finish_reason == "length"


def test_thinking_budget_inside_a_run(engines):
    config = engines[0].llm_engine.vllm_config.reasoning_config
    start, end = config.reasoning_start_token_ids, config.reasoning_end_token_ids
    prompt = random_prompt(21, 4) + start
    budgets = (0, 1, 2, 3, 5, 6)
    requests = [(prompt, sampling(10, thinking_token_budget=budget)) for budget in budgets]
    requests.append((prompt, sampling(10)))
    requests.append((prompt, sampling(10, thinking_token_budget=3, temperature=0.3, seed=1)))
    answers = [tokens(output) for output in compare(*engines, requests)]
    thought = answers[len(budgets)]
    for budget, answer in zip(budgets, answers, strict=False):
        assert answer[: budget + len(end)] == (*thought[:budget], *end)
