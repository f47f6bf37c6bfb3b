"""The npu device of tests with the operations that a real one gets: torch_npu's, as documented.

`DEEPINFER_NPU_MODULE=npu_ops.device_with_operations` makes the Ascend 950 platform run on it.
"""

from __future__ import annotations

import sys

import fake_npu.device  # noqa: F401
import torch
from npu_ops import documented_torch_npu

from vllm_deepinfer.ops import npu

sys.modules["torch_npu"], CALLS = documented_torch_npu.module()
npu.register(torch.device("npu", 0))
