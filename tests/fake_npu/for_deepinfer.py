"""The device, with this package's operations served on it by their CPU kernels.

`DEEPINFER_NPU_MODULE=fake_npu.for_deepinfer` makes the Ascend 950 platform run on it.
"""

from __future__ import annotations

import importlib
import pkgutil

import torch

import fake_npu.device  # noqa: F401
import vllm_deepinfer.ops

for _module in pkgutil.iter_modules(vllm_deepinfer.ops.__path__, "vllm_deepinfer.ops."):
    if not _module.ispkg:
        importlib.import_module(_module.name)
torch.ops.fake_npu.serve_operations("vllm_deepinfer")
