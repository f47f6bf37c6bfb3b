"""Write a small random checkpoint in the published layout."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm_deepinfer.checkpoint_maker.corpus import CORPUS
from vllm_deepinfer.checkpoint_maker.random_weights import RandomWeights
from vllm_deepinfer.checkpoint_maker.shards import plan_shards, shard_name, units
from vllm_deepinfer.checkpoint_maker.tokenizer import CONTROL_TOKENS
from vllm_deepinfer.models.deepseek_v41.checkpoint_files import INDEX_NAME
from vllm_deepinfer.models.deepseek_v41.config import V41Config
from vllm_deepinfer.models.deepseek_v41.presets import TINY_TOKENIZER, preset
from vllm_deepinfer.models.deepseek_v41.schema import schema, total_bytes

MAX_SHARD_BYTES = 8_000_000  # small, so that even the tiny model has several shards


@dataclass(frozen=True)
class Progress:
    """How far the maker is; bytes are tensor bytes."""

    shards: int
    num_shards: int
    tensors: int
    num_tensors: int
    bytes: int
    num_bytes: int


class FolderNotEmptyError(ValueError):
    """The folder to write to holds files already."""


def make_tiny_checkpoint(
    folder: str | os.PathLike[str],
    seed: int = 0,
    force: bool = False,
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> Progress:
    """Write the ``tiny`` preset with random weights; equal seeds give equal bytes.

    The files appear in ``folder`` when all of them are complete.

    Args:
        folder: created if absent.
        seed: chooses the weights.
        force: replace a checkpoint that is in ``folder``; other files there stay.
        on_progress: called after each shard.

    Returns:
        The final progress.

    Raises:
        FolderNotEmptyError: ``folder`` is not empty and ``force`` is not given.
    """
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise FolderNotEmptyError(f"{folder} is a file; give a folder")
    if folder.is_dir() and any(folder.iterdir()) and not force:
        raise FolderNotEmptyError(
            f"{folder} is not empty; give another folder, or --force to replace its checkpoint"
        )
    folder.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        final = _write(staging, preset("tiny"), seed, on_progress)
        folder.mkdir(exist_ok=True)
        for stale in [*folder.glob("*.safetensors"), *folder.glob("*.safetensors.index.json")]:
            stale.unlink()
        for path in sorted(staging.iterdir()):
            os.replace(path, folder / path.name)
    finally:
        shutil.rmtree(staging)
    return final


def _write(
    folder: Path, config: dict[str, Any], seed: int, on_progress: Callable[[Progress], None]
) -> Progress:
    write_configuration(folder, config)
    return _write_weights(folder, V41Config.from_dict(config), seed, on_progress)


def write_configuration(folder: Path, config: dict[str, Any]) -> None:
    """Write all of a checkpoint but its tensors: ``config`` and the tiny tokenizer."""
    _write_json(folder / "config.json", config)
    _write_json(
        folder / "generation_config.json",
        {key: config[key] for key in ("bos_token_id", "eos_token_id")},
    )
    _write_tokenizer(folder, config["text_config"]["max_position_embeddings"])


def _write_weights(
    folder: Path, config: V41Config, seed: int, on_progress: Callable[[Progress], None]
) -> Progress:
    from safetensors.torch import save_file

    tensors = schema(config)
    size = total_bytes(tensors.values())
    shards = plan_shards(units(tensors.values()), MAX_SHARD_BYTES)
    weights = RandomWeights(config, corpus_successors(), seed)
    shard_of: dict[str, str] = {}
    written = 0
    for number, shard in enumerate(shards):
        name = shard_name(number, len(shards))
        made = {key: data for unit in shard for key, data in weights.make(unit).items()}
        save_file(made, folder / name, metadata={"format": "pt"})
        shutil.copymode(folder / "config.json", folder / name)  # safetensors lets only us read it
        shard_of |= dict.fromkeys(made, name)
        written += sum(total_bytes(unit) for unit in shard)
        progress = Progress(number + 1, len(shards), len(shard_of), len(tensors), written, size)
        on_progress(progress)
    _write_json(
        folder / INDEX_NAME,
        {"metadata": {"total_size": size}, "weight_map": dict(sorted(shard_of.items()))},
    )
    return progress


def corpus_successors() -> dict[int, int]:
    """Chain the corpus' tokens in the order they first appear in it, and close the chain."""
    from tokenizers import Tokenizer

    chain = list(dict.fromkeys(Tokenizer.from_file(str(TINY_TOKENIZER)).encode(CORPUS).ids))
    return dict(zip(chain, chain[1:] + chain[:1], strict=True))


def _write_tokenizer(folder: Path, max_length: int) -> None:
    shutil.copyfile(TINY_TOKENIZER, folder / "tokenizer.json")
    begin, end, pad = CONTROL_TOKENS
    _write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": begin,
            "eos_token": end,
            "pad_token": pad,
            "add_bos_token": False,
            "add_eos_token": False,
            "model_max_length": max_length,
            "clean_up_tokenization_spaces": False,
        },
    )


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
