"""From loaded weights to a model that can run: hash constants of its engram layers."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from vllm_deepinfer.models.deepseek_v41.config import ConfigError, V41Config
from vllm_deepinfer.models.deepseek_v41.decoder import Decoder
from vllm_deepinfer.models.deepseek_v41.engram import EngramConstants
from vllm_deepinfer.models.deepseek_v41.engram_constants import (
    compressed_token_map,
    hash_multipliers,
    table_offsets,
    table_primes,
)

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
    """Give every engram layer its constants, on the device of its weights."""
    for layer, value in constants.items():
        engram = decoder.layers[layer].engram
        engram.constants = value.to(engram.q_weight.device)
