"""The gate of the shared expert."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from vllm_deepinfer.ops import router

VALUES_PER_PROGRAM = 1024


@triton.jit
def clamped_silu_product(gate, up, limit):
    """``silu(min(gate, limit)) * clamp(up, -limit, limit)`` of float32."""
    gate = tl.minimum(gate, limit)
    up = tl.minimum(tl.maximum(up, -limit), limit)
    return tl.div_rn(gate, 1.0 + tl.exp(-gate)) * up


@triton.jit
def clamped_swiglu_kernel(gate, up, out, count, limit, tile: tl.constexpr):
    number = tl.program_id(0).to(tl.int64) * tile + tl.arange(0, tile)
    held = number < count
    left = tl.load(gate + number, mask=held, other=0.0).to(tl.float32)
    right = tl.load(up + number, mask=held, other=0.0).to(tl.float32)
    result = clamped_silu_product(left, right, limit)
    tl.store(out + number, result.to(out.dtype.element_ty), mask=held)


def clamped_swiglu(gate: Tensor, up: Tensor, limit: float, dtype: torch.dtype) -> Tensor:
    """``silu(min(gate, limit)) * clamp(up, -limit, limit)`` of ``[T, n]``, rounded to ``dtype``."""
    out = router._swiglu_fake(gate, up, limit, dtype)
    if out.numel():
        clamped_swiglu_kernel[triton.cdiv(out.numel(), VALUES_PER_PROGRAM),](
            gate.contiguous(), up.contiguous(), out, out.numel(), limit, tile=VALUES_PER_PROGRAM,
            num_warps=4, enable_fp_fusion=False,
        )  # fmt: skip
    return out
