"""Requests the V2 model runner has no room for are refused, by parameter, before they reach it.

The runner keeps per-request tables of fixed width and raises in the worker when one overflows,
which ends the engine and every other request with it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllm.sampling_params import SamplingParams

MAX_ALLOWED_TOKEN_IDS = 1024
MAX_LOGIT_BIASES = 1024
MAX_STOP_TOKEN_IDS = 128
MAX_LOGPROB_TOKEN_IDS = 128
MAX_BAD_WORD_SEQUENCES = 1024
MAX_BAD_WORD_TOKENS = 16384

_BAD_WORD_VARIABLES = {
    "VLLM_MAX_NUM_BAD_WORDS": MAX_BAD_WORD_SEQUENCES,
    "VLLM_MAX_BAD_WORDS_TOTAL_TOKENS": MAX_BAD_WORD_TOKENS,
}
# vLLM bans a word at the start of a text and after a space: two token sequences.
_VARIANTS = 2
# The model's own end-of-text tokens join a request's stop tokens after this check.
_END_TOKENS = 4


def widen_bad_word_tables() -> None:
    """Give bad words more room than vLLM's 128 words of 1024 tokens, unless the user chose.

    Words are counted here before they are tokenised, so the room must fit the worst case.
    """
    for variable, value in _BAD_WORD_VARIABLES.items():
        os.environ.setdefault(variable, str(value))


def check_request(params: SamplingParams) -> None:
    """Raise vLLM's validation error, an HTTP 400, for the first parameter that does not fit."""
    for parameter, count, limit in _counts(params):
        if count > limit:
            from vllm.exceptions import VLLMValidationError

            raise VLLMValidationError(
                f"{parameter} needs {count} entries in the model runner's tables; at most {limit} "
                "fit. Send fewer.",
                parameter=parameter,
                value=count,
            )


def _counts(params: SamplingParams) -> list[tuple[str, int, int]]:
    """Per parameter: the most entries it can need, and how many there are."""
    words = params.bad_words or []
    # A token holds at least one byte of its word; one more token may hold the space before it.
    tokens = sum(len(word.encode()) + 1 for word in words)
    stops = params.all_stop_token_ids if params.min_tokens > 0 else None
    return [
        ("allowed_token_ids", _size(params.allowed_token_ids), MAX_ALLOWED_TOKEN_IDS),
        ("logit_bias", _size(params.logit_bias), MAX_LOGIT_BIASES),
        ("stop_token_ids", _size(stops) + _END_TOKENS, MAX_STOP_TOKEN_IDS),
        ("logprob_token_ids", _size(params.logprob_token_ids), MAX_LOGPROB_TOKEN_IDS),
        ("bad_words", _VARIANTS * len(words), _limit("VLLM_MAX_NUM_BAD_WORDS")),
        ("bad_words", _VARIANTS * tokens, _limit("VLLM_MAX_BAD_WORDS_TOTAL_TOKENS")),
    ]


def _size(values: Any) -> int:
    return 0 if values is None else len(values)


def _limit(variable: str) -> int:
    return int(os.environ.get(variable, _BAD_WORD_VARIABLES[variable]))
