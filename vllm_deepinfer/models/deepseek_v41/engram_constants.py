"""Constants of the engram hash: compressed token ids, multipliers, bucket counts, table offsets.

All of them are part of the trained model: a wrong one looks up wrong memory rows without any
error, so each is a pure function tested against published values.
Source: V4.1 specification, sections 3.1 and 3.2.
"""

from __future__ import annotations

import os
from itertools import count
from math import isqrt
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from vllm_deepinfer.models.deepseek_v41.config import V41Config

# A private-use character stands in for a token that is one space, so that stripping keeps it.
_LONE_SPACE = "\ue000"
_REPLACEMENT = "\ufffd"
_SEED_STRIDE = 10007
_INT64_MAX = 2**63 - 1


def compressed_token_map(tokenizer_json_path: str | os.PathLike[str]) -> tuple[np.ndarray, int]:
    """Map every token id to a smaller id shared by tokens that read alike.

    Args:
        tokenizer_json_path: a Hugging Face ``tokenizer.json``.

    Returns:
        The map, int32 [number of token ids], and the number of distinct compressed ids, which are
        numbered in the order of first appearance.
    """
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(os.fspath(tokenizer_json_path))
    normalise = _normaliser()
    compressed_of: dict[str, int] = {}
    compressed = np.empty(tokenizer.get_vocab_size(with_added_tokens=True), dtype=np.int32)
    for token_id in range(len(compressed)):
        text = tokenizer.decode([token_id], skip_special_tokens=False)
        if _REPLACEMENT in text:  # a lone piece of a multi-byte character has no reading
            key = tokenizer.id_to_token(token_id)
        else:
            key = normalise(text) or text
        compressed[token_id] = compressed_of.setdefault(key, len(compressed_of))
    return compressed, len(compressed_of)


def _normaliser():
    from tokenizers import Regex, normalizers

    return normalizers.Sequence(
        [
            normalizers.NFKC(),
            normalizers.NFD(),
            normalizers.StripAccents(),
            normalizers.Lowercase(),
            normalizers.Replace(Regex(r"[ \t\r\n]+"), " "),
            normalizers.Replace(Regex(r"^ $"), _LONE_SPACE),
            normalizers.Strip(),
            normalizers.Replace(_LONE_SPACE, " "),
        ]
    ).normalize_str


def hash_multipliers(layer: int, max_ngram_size: int, compressed_vocab_size: int) -> np.ndarray:
    """Return the odd multipliers of one engram layer, int64 [max_ngram_size].

    They are bounded so that a compressed id times a multiplier never overflows int64.
    """
    bound = max(1, _INT64_MAX // compressed_vocab_size // 2)
    draws = np.random.default_rng(_SEED_STRIDE * layer).integers(
        0, bound, size=max_ngram_size, dtype=np.int64
    )
    return 2 * draws + 1


def table_primes(config: V41Config) -> dict[int, np.ndarray]:
    """Return the bucket counts of every hash table.

    Returns:
        Engram layer id -> int64 [max_ngram_size - 1, engram_n_heads]. All entries are different
        primes; each row takes the smallest ones from ``engram_vocab_size`` up that are still free.
    """
    taken: set[int] = set()
    primes: dict[int, np.ndarray] = {}
    for layer in config.engram_layer_ids:
        rows = []
        for _ in range(config.engram_max_ngram_size - 1):
            rows.append(_free_primes(config.engram_vocab_size, config.engram_n_heads, taken))
            taken.update(rows[-1])
        primes[layer] = np.array(rows, dtype=np.int64)
    return primes


def table_offsets(primes: np.ndarray) -> np.ndarray:
    """Return the first row of each bucket range in its layer's table.

    Args:
        primes: int64 [max_ngram_size - 1, engram_n_heads], one layer of :func:`table_primes`.

    Returns:
        int64 of the same shape: exclusive prefix sums in row-major order.
    """
    flat = primes.reshape(-1)
    return (np.cumsum(flat) - flat).reshape(primes.shape)


def _free_primes(start: int, how_many: int, taken: set[int]) -> list[int]:
    found: list[int] = []
    for candidate in count(start):
        if candidate not in taken and _is_prime(candidate):
            found.append(candidate)
            if len(found) == how_many:
                return found
    raise AssertionError("unreachable: there is always a larger prime")


def _is_prime(number: int) -> bool:
    if number < 4:
        return number > 1
    if number % 2 == 0:
        return False
    return bool((number % np.arange(3, isqrt(number) + 1, 2)).all())
