"""Checkpoint tensors as dequantised float64 arrays.

source: V4.1 specification, section 6.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open

from . import formats

BLOCK = 32  # weight scale blocks are 32 x 32 (FP8) or 1 x 32 (FP4)


class Weights:
    """``weights[name]`` -> the tensor ``name`` times its scale, float64.

    Three storage forms are told apart by dtype: F8_E4M3 with one ue8m0 scale per 32x32 block,
    I8 (packed e2m1) with one ue8m0 scale per row and 32 inputs, and plain BF16/F32.
    """

    def __init__(self, checkpoint_dir: Path):
        index = checkpoint_dir / "model.safetensors.index.json"
        if index.exists():
            files = set(json.loads(index.read_text())["weight_map"].values())
        else:
            files = {"model.safetensors"}
        self._handles = {}
        for file in sorted(files):
            handle = safe_open(str(checkpoint_dir / file), framework="pt")
            self._handles.update(dict.fromkeys(handle.keys(), handle))
        self._cache: dict[str, np.ndarray] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._handles

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._cache:
            self._cache[name] = self._read(name)
        return self._cache[name]

    def _tensor(self, name: str) -> torch.Tensor:
        if name not in self._handles:
            raise KeyError(f"the checkpoint has no tensor {name}")
        return self._handles[name].get_tensor(name)

    def _scales(self, name: str) -> np.ndarray:
        scale_name = name.removesuffix(".weight") + ".scale"
        return formats.decode_ue8m0(self._tensor(scale_name).view(torch.uint8).numpy())

    def _read(self, name: str) -> np.ndarray:
        tensor = self._tensor(name)
        if tensor.dtype == torch.float8_e4m3fn:
            values = formats.decode_e4m3(tensor.view(torch.uint8).numpy())
            scales = self._scales(name)
            rows, columns = values.shape
            # engram tables: one scale per row and 32 columns; linears: one per 32 x 32 block
            rows_per_scale = 1 if scales.shape[0] == rows else BLOCK
            scales = scales.repeat(rows_per_scale, axis=0)[:rows]
            return values * scales.repeat(BLOCK, axis=1)[:, :columns]
        if tensor.dtype == torch.int8:
            values = formats.decode_e2m1_packed(tensor.view(torch.uint8).numpy())
            return values * self._scales(name).repeat(BLOCK, axis=1)
        if tensor.dtype in (torch.bfloat16, torch.float32):
            return tensor.to(torch.float64).numpy()
        raise ValueError(f"{name} has dtype {tensor.dtype}; expected F8_E4M3, I8, BF16 or F32")
