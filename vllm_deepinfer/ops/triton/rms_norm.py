"""Root-mean-square normalisation, one row a program."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from vllm_deepinfer.ops import norm


@triton.jit
def rms_norm_kernel(x, weight, out, columns, eps, tile: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * columns
    column = tl.arange(0, tile)
    held = column < columns
    values = tl.load(x + row + column, mask=held, other=0.0).to(tl.float32)
    mean = tl.div_rn(tl.sum(values * values, axis=0), columns.to(tl.float32))
    factor = tl.div_rn(1.0, tl.sqrt_rn(mean + eps))
    result = tl.load(weight + column, mask=held, other=0.0).to(tl.float32) * (values * factor)
    tl.store(out + row + column, result.to(out.dtype.element_ty), mask=held)


def rms_norm(x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    """``weight * x / sqrt(mean(x**2) + eps)`` of ``[T, n]``, rounded to ``dtype``."""
    out = norm._fake(x, weight, eps, dtype)
    if out.numel():
        columns = x.shape[1]
        rms_norm_kernel[len(x),](
            x.contiguous(), weight, out, columns, eps, tile=triton.next_power_of_2(columns),
            num_warps=8 if columns > 2048 else 4, enable_fp_fusion=False,
        )  # fmt: skip
    return out
