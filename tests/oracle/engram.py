"""Engram: token compression, n-gram hashes and the gated lookup.

source: V4.1 specification, section 3.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from tokenizers import Regex, Tokenizer, normalizers

from .config import HC_STREAMS, Config
from .numerics import Numerics
from .weights import Weights

LONE_SPACE = "\ue000"


def compress_vocabulary(tokenizer_json: Path) -> np.ndarray:
    """int64 [vocab]: token id -> compressed id, in order of first appearance.  source: 3.1."""
    tokenizer = Tokenizer.from_file(str(tokenizer_json))
    normalise = normalizers.Sequence(
        [
            normalizers.NFKC(),
            normalizers.NFD(),
            normalizers.StripAccents(),
            normalizers.Lowercase(),
            normalizers.Replace(Regex(r"[ \t\r\n]+"), " "),
            normalizers.Replace(Regex(r"^ $"), LONE_SPACE),
            normalizers.Strip(),
            normalizers.Replace(LONE_SPACE, " "),
        ]
    )
    compressed_of_key: dict[str, int] = {}
    compressed = np.empty(tokenizer.get_vocab_size(), dtype=np.int64)
    for token in range(len(compressed)):
        text = tokenizer.decode([token], skip_special_tokens=False)
        if "\ufffd" in text:
            key = tokenizer.id_to_token(token)
        else:
            key = normalise.normalize_str(text) or text
        compressed[token] = compressed_of_key.setdefault(key, len(compressed_of_key))
    return compressed


def hash_multipliers(layer: int, compressed_vocab: int, max_ngram: int) -> np.ndarray:
    """int64 [max_ngram] odd multipliers of one layer.  source: 3.2."""
    generator = np.random.default_rng(10007 * layer)
    bound = max(1, (2**63 - 1) // compressed_vocab // 2)
    return generator.integers(0, bound, size=max_ngram, dtype=np.int64) * 2 + 1


def _is_prime(number: int) -> bool:
    return number > 1 and all(number % divisor for divisor in range(2, int(number**0.5) + 1))


def hash_primes(config: Config) -> dict[int, np.ndarray]:
    """{layer: int64 [max_ngram - 1, heads]} table sizes, all distinct.  source: 3.2."""
    used: set[int] = set()
    primes = {}
    for layer in config.engram_layer_ids:
        table = np.empty((config.engram_max_ngram_size - 1, config.engram_n_heads), dtype=np.int64)
        for ngram in range(table.shape[0]):
            candidate = config.engram_vocab_size - 1
            for head in range(table.shape[1]):
                candidate += 1
                while candidate in used or not _is_prime(candidate):
                    candidate += 1
                used.add(candidate)
                table[ngram, head] = candidate
        primes[layer] = table
    return primes


class Engram:
    """Hash tables of all engram layers of one checkpoint."""

    def __init__(self, config: Config, tokenizer_json: Path):
        self.config = config
        self.compressed = compress_vocabulary(tokenizer_json)
        distinct = int(self.compressed.max()) + 1
        if distinct != config.engram_compressed_vocab_size:
            raise ValueError(
                f"{tokenizer_json} compresses to {distinct} ids, config.json says "
                f"engram_compressed_vocab_size={config.engram_compressed_vocab_size}"
            )
        self.primes = hash_primes(config)
        for layer, rows in zip(config.engram_layer_ids, config.engram_num_embeddings, strict=True):
            if self.primes[layer].sum() != rows:
                raise ValueError(
                    f"engram layer {layer}: primes sum to {self.primes[layer].sum()}, "
                    f"engram_num_embeddings says {rows}"
                )

    def rows(self, layer: int, token_ids: np.ndarray, dead: np.ndarray | None = None) -> np.ndarray:
        """int64 [T, (max_ngram - 1) * heads] table rows; ``dead`` bool [T] marks image tokens.

        source: 3.3.
        """
        config = self.config
        multipliers = hash_multipliers(
            layer, config.engram_compressed_vocab_size, config.engram_max_ngram_size
        )
        primes = self.primes[layer]
        offsets = (np.cumsum(primes) - primes.reshape(-1)).reshape(primes.shape)
        pad = int(self.compressed[config.engram_pad_token_id])
        heads = config.engram_n_heads
        rows = np.empty((len(token_ids), primes.size), dtype=np.int64)
        for position in range(len(token_ids)):
            mixed, blocked = 0, False
            for distance in range(config.engram_max_ngram_size):
                source = position - distance
                blocked = blocked or source < 0 or (dead is not None and bool(dead[source]))
                value = pad if blocked else int(self.compressed[token_ids[source]])
                mixed ^= value * int(multipliers[distance])
                if distance >= 1:
                    for head in range(heads):
                        prime = int(primes[distance - 1, head])
                        column = (distance - 1) * heads + head
                        rows[position, column] = mixed % prime + offsets[distance - 1, head]
        return rows


def apply_engram(
    numerics: Numerics,
    weights: Weights,
    config: Config,
    layer: int,
    stream: np.ndarray,
    rows: np.ndarray,
) -> np.ndarray:
    """Stream [T, 4, D] with the gated memory added to every stream.  source: 3.4."""
    prefix = f"layers.{layer}.engram"
    tokens, _, hidden = stream.shape
    memory = numerics.store(weights[f"{prefix}.embed.weight"][rows].reshape(tokens, -1))
    projected = numerics.linear_quantised(memory, weights[f"{prefix}.wkv.weight"])
    key = projected[:, : HC_STREAMS * hidden].reshape(tokens, HC_STREAMS, hidden)
    value = projected[:, HC_STREAMS * hidden :]
    combined = weights[f"{prefix}.q_weight"] * weights[f"{prefix}.k_weight"]  # [4, D]
    eps = config.rms_norm_eps
    mean_squares = ((stream**2).mean(axis=-1) + eps) * ((key**2).mean(axis=-1) + eps)
    dot = (stream * combined * key).sum(axis=-1) / np.sqrt(mean_squares) * hidden**-0.5
    gate = sigmoid(np.copysign(np.sqrt(np.maximum(np.abs(dot), 1e-6)), dot))  # [T, 4]
    return numerics.store(stream + gate[:, :, None] * value[:, None, :])


def sigmoid(x: np.ndarray) -> np.ndarray:
    """1 / (1 + exp(-x)); large negative x gives 0 through exp's overflow to inf."""
    with np.errstate(over="ignore"):
        return 1.0 / (1.0 + np.exp(-x))
