"""Tensors that exist once the operations and the decoder are imported, by name.

By itself: DTYPE DEVICE. Imports under these defaults, checks every tile unit there is, prints JSON.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import pkgutil
import sys

import torch

MODULES = ("vllm_deepinfer.ops", "vllm_deepinfer.models.deepseek_v41.decoder")
_OF_ACCELERATORS = {"triton", "npu"}


def import_all() -> None:
    ops, decoder = MODULES
    for found in pkgutil.iter_modules(importlib.import_module(ops).__path__):
        if found.name not in _OF_ACCELERATORS:
            importlib.import_module(f"{ops}.{found.name}")
    importlib.import_module(decoder)


def imported_tensors() -> dict[str, str]:
    """Device, dtype, shape and the hash of the bytes of each."""
    found = {}
    for name, module in list(sys.modules.items()):
        if not name.startswith("vllm_deepinfer."):
            continue
        for key, value in vars(module).items():
            if isinstance(value, torch.Tensor):
                facts = f"{value.device} {value.dtype} {list(value.shape)}"
                bytes_ = value.contiguous().view(torch.uint8).numpy().tobytes()
                found[f"{name}.{key}"] = f"{facts} {hashlib.sha256(bytes_).hexdigest()}"
    return found


def check_tile_units() -> None:
    from vllm_deepinfer.ops.library import cpu_kernels
    from vllm_deepinfer.ops.tile_unit_check import check_tile_unit

    kernels = cpu_kernels()
    if kernels is not None:
        for isa in kernels.available_isas().split():
            if isa.endswith("amx"):
                check_tile_unit(kernels, isa)


if __name__ == "__main__":
    torch.set_default_dtype(getattr(torch, sys.argv[1]))
    torch.set_default_device(sys.argv[2])
    import_all()
    check_tile_units()
    print(json.dumps(imported_tensors()))
