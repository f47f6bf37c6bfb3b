"""Write a folder that looks like a checkpoint of the tiny preset and holds next to no weights."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from vllm_deepinfer.checkpoint_maker.maker import write_configuration
from vllm_deepinfer.models.deepseek_v41.presets import preset
from vllm_deepinfer.testing.stand_in.law import SETTINGS_NAME, Settings


def make_stand_in(folder: str | os.PathLike[str], **settings: Any) -> Settings:
    """Write configuration, tokenizer, two dummy tensors and the stand-ins' settings.

    Args:
        folder: created if absent; the files of an earlier call are replaced.
        settings: fields of `Settings`.

    Raises:
        ValueError: a setting is not allowed.
    """
    import torch
    from safetensors.torch import save_file

    made = Settings(**settings)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    write_configuration(folder, preset("tiny"))
    # The second marks the folder as one with draft stages.
    one = torch.ones(1, dtype=torch.float32)
    dummies = {"norm.weight": one, "mtp.0.norm.weight": one.clone()}
    save_file(dummies, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / SETTINGS_NAME).write_text(json.dumps(made.to_json(), indent=2), encoding="utf-8")
    return made
