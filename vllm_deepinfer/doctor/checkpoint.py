"""What a checkpoint of a model holds, from its config.json alone; needs torch, not vLLM."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from vllm_deepinfer.models.deepseek_v41.presets import PRESETS, preset


def read_config(model: str) -> dict[str, Any] | None:
    """Content of the config.json of a preset or a folder; None for a name that vLLM downloads.

    Raises:
        ValueError: the file is not JSON.
    """
    if model in PRESETS:
        return preset(model)
    path = Path(model) / "config.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def checkpoint_bytes(content: dict[str, Any]) -> dict[str, int]:
    """Bytes of tensor data by part, and in total.

    Raises:
        vllm_deepinfer.models.deepseek_v41.config.ConfigError: it is not this model's configuration.
    """
    from vllm_deepinfer.models.deepseek_v41.config import V41Config
    from vllm_deepinfer.models.deepseek_v41.schema import schema

    sizes = {"experts": 0, "engram": 0, "drafts": 0, "vision": 0, "other": 0}
    for name, tensor in schema(V41Config.from_dict(content)).items():
        sizes[_part(name)] += tensor.num_bytes
    sizes["total"] = sum(sizes.values())
    return {f"{part}_bytes": num_bytes for part, num_bytes in sizes.items()}


def _part(name: str) -> str:
    if ".ffn.experts." in name:
        return "experts"
    if ".engram.embed." in name:
        return "engram"
    if name.startswith("mtp."):
        return "drafts"
    is_vision = name.startswith(("vision.", "aligner.", "image_")) or name.endswith(".bias_vl")
    return "vision" if is_vision else "other"
