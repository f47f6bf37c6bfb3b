"""Importing this module gives torch the device "npu" and `torch.npu`, as importing torch_npu does.

`FAKE_NPU_DEVICES` (default 1) says how many there are, `FAKE_NPU_MEMORY_GIB` (2) of what size.
"""

from __future__ import annotations

import os

import torch

from fake_npu import build, collectives, graphs, module

torch.ops.load_library(str(build.library()))
torch.ops.fake_npu.set_device_count(int(os.environ.get("FAKE_NPU_DEVICES", "1")))
torch.ops.fake_npu.set_memory_size(int(os.environ.get("FAKE_NPU_MEMORY_GIB", "2")) << 30)
torch.utils.rename_privateuse1_backend("npu")
torch._register_device_module("npu", module.make())
torch.utils.generate_methods_for_privateuse1_backend(
    for_tensor=True, for_module=True, for_packed_sequence=False, for_storage=True
)
graphs.register()
collectives.register()
