"""Kernels are the CUDA implementation where they are registered, and cost nothing elsewhere.

If this fails, a server on a CPU imports Triton, or one on a GPU computes by the torch reference.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from vllm_deepinfer.ops.triton import OPERATIONS


def run(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], check=True, capture_output=True, text=True
    ).stdout


def test_importing_the_operations_imports_no_triton():
    code = """
import sys
import vllm_deepinfer.ops.experts, vllm_deepinfer.ops.triton
print("vllm_deepinfer.ops.triton.tiles" in sys.modules)
"""
    assert run(code).split() == ["False"]


def test_registration_covers_every_operation():
    pytest.importorskip("triton", reason="the kernels under test are Triton's")
    code = f"""
import torch
from vllm_deepinfer.ops import triton as kernels
names = {OPERATIONS!r}
def covered():
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    return sum(has("vllm_deepinfer::" + name, "CUDA") for name in names)
for name in names:
    kernels.launcher(name)
before = covered()
kernels.register(batch_invariant=True)
from vllm_deepinfer.ops.triton import tiles
print(before, covered(), tiles._batch_invariant)
"""
    assert run(code).split() == ["0", str(len(OPERATIONS)), "True"]
