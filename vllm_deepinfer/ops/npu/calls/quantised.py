"""Quantisation and FP8 products (section 2.4 of the V4.1 specification)."""

from __future__ import annotations

import torch
import torch_npu
from torch import Tensor

from vllm_deepinfer.ops import formats, linear, quantise
from vllm_deepinfer.ops.npu import layouts

CEILING_OF_AMAX = 1
"""``scale_alg``: the scale is the power of two at or above amax / 448, not OCP's below amax."""
MX_GROUPS = [1, 1, formats.FP8_GROUP]
"""``group_sizes``: a scale per row, per row of the weight and per 32 columns."""


def quantised_pairs(x: Tensor) -> tuple[Tensor, Tensor]:
    """e4m3 codes ``[T, n]`` and scale pairs ``[T, ceil(n / 64), 2]`` of bfloat16 ``[T, n]``."""
    return torch_npu.npu_dynamic_mx_quant(
        x.contiguous(),
        axis=-1,
        round_mode="rint",
        dst_type=torch_npu.float8_e4m3fn,
        block_size=formats.FP8_GROUP,
        scale_alg=CEILING_OF_AMAX,
        max_low_bound=formats.FP8_AMAX_FLOOR,
    )


def quantise_fp8(x: Tensor) -> tuple[Tensor, Tensor]:
    quantise._check(x)
    codes, pairs = quantised_pairs(x)
    return codes, layouts.scales_of_pairs(pairs, x.shape[1] // formats.FP8_GROUP)


def fp8_linear(
    x: Tensor,
    scales: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    dtype: torch.dtype,
    groups: int = 1,
) -> Tensor:
    linear._check_fp8(x, scales, weight, weight_scale, dtype, groups)
    return torch_npu.npu_quant_matmul(
        x.contiguous(),
        layouts.linear_weight(weight),
        layouts.linear_weight_scales(weight_scale, weight.shape[0]),
        pertoken_scale=layouts.scale_pairs(scales),
        output_dtype=dtype,
        scale_dtype=torch_npu.float8_e8m0fnu,
        pertoken_scale_dtype=torch_npu.float8_e8m0fnu,
        group_sizes=MX_GROUPS,
    )
