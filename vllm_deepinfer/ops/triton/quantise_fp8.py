"""Dynamic quantisation of activations to e4m3 with a UE8M0 scale per 32 columns."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from vllm_deepinfer.ops import quantise
from vllm_deepinfer.ops.triton.number_formats import quantise_fp8_groups

GROUPS_PER_PROGRAM = 64


@triton.jit
def quantise_fp8_kernel(x, codes, scales, num_groups, groups: tl.constexpr):
    # Rows are contiguous and hold whole groups, so groups are numbered through all rows.
    group = tl.program_id(0).to(tl.int64) * groups + tl.arange(0, groups)
    offset = group[:, None] * 32 + tl.arange(0, 32)[None, :]
    held = group < num_groups
    values = tl.load(x + offset, mask=held[:, None], other=0.0).to(tl.float32)
    code, byte = quantise_fp8_groups(values)
    tl.store(codes + offset, code, mask=held[:, None])
    tl.store(scales + group, byte.to(tl.uint8), mask=held)


def quantise_fp8(x: Tensor) -> tuple[Tensor, Tensor]:
    """``[T, n]`` to e4m3 codes ``[T, n]`` and UE8M0 scale bytes ``[T, n/32]``, uint8."""
    codes, scales = quantise._fake(x)
    if scales.numel():
        grid = (triton.cdiv(scales.numel(), GROUPS_PER_PROGRAM),)
        quantise_fp8_kernel[grid](
            x.contiguous(),
            codes,
            scales,
            scales.numel(),
            groups=GROUPS_PER_PROGRAM,
            num_warps=4,
            enable_fp_fusion=False,
        )
    return codes, scales
