"""/metrics counts what was served: tokens in, tokens out, prefix-cache hits.

Operators scale and bill by these; a prefix cache that is on but never hits shows only here.
"""

from __future__ import annotations

from serving_support import BLOCK_SIZE_TOKENS, MODEL

PROMPT_TOKENS = 4 * BLOCK_SIZE_TOKENS + 20
# Blocks of a prompt that can be shared: all full ones, but for the one the last token needs.
SHARED_TOKENS = 4 * BLOCK_SIZE_TOKENS


def test_tokens_and_prefix_cache_hits_are_counted(client, metrics):
    prompt = [20 + (7 * index) % 400 for index in range(PROMPT_TOKENS)]
    options = {"model": MODEL, "prompt": prompt, "max_tokens": 5, "temperature": 0.0}
    options["extra_body"] = {"ignore_eos": True}
    start = metrics.wait_until_idle()
    first_answer = client.completions.create(**options)
    first = metrics.wait_until_idle()
    assert first["prompt_tokens_total"] - start["prompt_tokens_total"] == PROMPT_TOKENS
    assert first["generation_tokens_total"] - start["generation_tokens_total"] == 5
    assert first["prefix_cache_queries_total"] - start["prefix_cache_queries_total"] == (
        PROMPT_TOKENS
    )
    assert first["prefix_cache_hits_total"] == start["prefix_cache_hits_total"]
    assert first["request_success_total"] - start["request_success_total"] == 1

    second_answer = client.completions.create(**options)
    second = metrics.wait_until_idle()
    assert second["prefix_cache_hits_total"] - first["prefix_cache_hits_total"] == SHARED_TOKENS
    assert second["prompt_tokens_total"] - first["prompt_tokens_total"] == PROMPT_TOKENS
    assert second_answer.usage.completion_tokens == first_answer.usage.completion_tokens == 5


def test_a_different_first_token_shares_nothing(client, metrics):
    """The hits above come from equal prefixes, not from equal blocks."""
    prompt = [21 + (7 * index) % 400 for index in range(PROMPT_TOKENS)]
    client.completions.create(model=MODEL, prompt=prompt, max_tokens=1)
    before = metrics.wait_until_idle()
    client.completions.create(model=MODEL, prompt=[11, *prompt[1:]], max_tokens=1)
    after = metrics.wait_until_idle()
    assert after["prefix_cache_hits_total"] == before["prefix_cache_hits_total"]
