"""From loaded weights to a model that can run: hash constants and working copies."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import nn

from vllm_deepinfer.log import get_logger
from vllm_deepinfer.models.deepseek_v41.config import ConfigError, V41Config
from vllm_deepinfer.models.deepseek_v41.decoder import Decoder
from vllm_deepinfer.models.deepseek_v41.engram import EngramConstants
from vllm_deepinfer.models.deepseek_v41.engram_constants import (
    compressed_token_map,
    hash_multipliers,
    table_offsets,
    table_primes,
)
from vllm_deepinfer.models.deepseek_v41.stored_weights import StoredWeight, WorkingCopies

logger = get_logger(__name__)

TOKENIZER_NAME = "tokenizer.json"


def tokenizer_folder(model: str, revision: str | None) -> Path:
    """Folder of the checkpoint's own ``tokenizer.json``, downloaded if need be."""
    from transformers.utils import cached_file

    path = cached_file(model, TOKENIZER_NAME, revision=revision)
    if path is None:
        raise ConfigError(
            f"model {model!r} has no {TOKENIZER_NAME}; engram layers hash token texts and need it."
        )
    return Path(path).parent


def load_engram_constants(
    config: V41Config, tokenizer_folder: str | os.PathLike[str]
) -> dict[int, EngramConstants]:
    """Hash constants of every engram layer, by layer.

    Raises:
        ConfigError: the tokenizer is absent, or is not the one the tables were made for.
    """
    if not config.engram_layer_ids:
        return {}
    path = Path(tokenizer_folder) / TOKENIZER_NAME
    if not path.is_file():
        raise ConfigError(
            f"{path} does not exist; engram layers hash token texts and need the checkpoint's "
            "own tokenizer.json."
        )
    token_map, num_compressed = compressed_token_map(path)
    if num_compressed != config.engram_compressed_vocab_size:
        raise ConfigError(
            f"{path} has {num_compressed} distinct token texts, but config.json says "
            f"engram_compressed_vocab_size {config.engram_compressed_vocab_size}; the engram "
            "tables belong to another tokenizer."
        )
    primes = table_primes(config)
    check_table_sizes(config, primes)
    return {
        layer: EngramConstants(
            token_map=torch.from_numpy(token_map).long(),
            pad_id=int(token_map[config.engram_pad_token_id]),
            multipliers=torch.from_numpy(
                hash_multipliers(layer, config.engram_max_ngram_size, num_compressed)
            ),
            primes=torch.from_numpy(primes[layer]),
            offsets=torch.from_numpy(table_offsets(primes[layer])),
        )
        for layer in config.engram_layer_ids
    }


def check_table_sizes(config: V41Config, primes: dict) -> None:
    """Refuse a table whose rows are not the sum of its hash buckets."""
    for layer, rows in zip(config.engram_layer_ids, config.engram_num_embeddings, strict=True):
        if int(primes[layer].sum()) != rows:
            raise ConfigError(
                f"engram layer {layer}: config.json says {rows} rows, but its hash buckets add up "
                f"to {int(primes[layer].sum())}."
            )


def set_engram_constants(decoder: Decoder, constants: dict[int, EngramConstants]) -> None:
    for layer, value in constants.items():
        decoder.layers[layer].engram.constants = value


def keep_working_copies(model: nn.Module, limit_gib: float) -> WorkingCopies:
    """Keep dequantised copies of weights, in order of use, up to ``limit_gib``."""
    copies = WorkingCopies(int(limit_gib * 2**30))
    for name, module in model.named_modules():
        if isinstance(module, StoredWeight):
            module.keep_working_copy(name, copies)
    if copies.not_kept:
        logger.warning(
            "%d weights do not fit weight_cache_gib=%s and are dequantised in every step, which is "
            "slow; raise weight_cache_gib if there is memory.",
            len(copies.not_kept),
            limit_gib,
        )
    logger.info("Dequantised working copies of weights: %.1f MiB.", copies.used_bytes / 2**20)
    return copies
