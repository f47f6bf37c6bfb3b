"""Weights kept as they are stored in the checkpoint, and the linear layers that use them.

Parameters have the checkpoint's dtype and shape, and are multiplied as they are.
Source: V4.1 specification, sections 2.4 and 6.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vllm_deepinfer.ops import formats
from vllm_deepinfer.ops.linear import fp8_linear, plain_linear
from vllm_deepinfer.ops.norm import rms_norm
from vllm_deepinfer.ops.numerics import Activation, Numerics

E4M3 = torch.float8_e4m3fn
E8M0 = torch.float8_e8m0fnu


def parameter(*shape: int, dtype: torch.dtype = torch.bfloat16) -> nn.Parameter:
    return nn.Parameter(torch.zeros(*shape, dtype=dtype), requires_grad=False)


class PlainLinear(nn.Module):
    """bfloat16 weight ``[out, in]``; products and sums in float32."""

    def __init__(self, columns: int, rows: int) -> None:
        super().__init__()
        self.weight = parameter(rows, columns)

    def forward(self, x: Tensor) -> Tensor:
        """bfloat16 or float32 ``[T, in]`` to float32 ``[T, out]``, not yet stored."""
        return plain_linear(x, self.weight)


class Fp8Linear(nn.Module):
    """e4m3 weight ``[out, in]`` with one UE8M0 scale per 32x32 block."""

    def __init__(self, columns: int, rows: int, numerics: Numerics) -> None:
        super().__init__()
        self.numerics = numerics
        self.weight = parameter(rows, columns, dtype=E4M3)
        block = formats.FP8_BLOCK
        self.scale = parameter(-(-rows // block), -(-columns // block), dtype=E8M0)

    def forward(self, x: Activation) -> Tensor:
        """``[T, in]`` to the stored product ``[T, out]``."""
        return fp8_linear(x.rows, x.scales, self.weight, self.scale, self.numerics.dtype)


class GroupedOutput(Fp8Linear):
    """First half of the output projection: each group of heads has its own rows.

    The input is not quantised; the weight's stored values are used as they are.
    """

    def __init__(self, columns: int, rank: int, groups: int, numerics: Numerics) -> None:
        super().__init__(columns, groups * rank, numerics)
        self.groups = groups

    def forward(self, heads: Tensor) -> Tensor:
        """``[T, H, head_dim]`` to the stored ``[T, groups * rank]``."""
        rows = heads.flatten(1)
        return fp8_linear(rows, None, self.weight, self.scale, self.numerics.dtype, self.groups)


class Fp4Stack(nn.Module):
    """Packed e2m1 weights ``[experts, out, in / 2]`` with a UE8M0 scale per row and 32 columns."""

    def __init__(self, experts: int, columns: int, rows: int) -> None:
        super().__init__()
        self.weight = parameter(experts, rows, columns // 2, dtype=torch.int8)
        self.scale = parameter(experts, rows, columns // formats.FP4_GROUP, dtype=E8M0)


class RmsNorm(nn.Module):
    """Root-mean-square normalisation with a bfloat16 weight (section 2.3)."""

    def __init__(self, size: int, eps: float, numerics: Numerics) -> None:
        super().__init__()
        self.weight = parameter(size)
        self.eps = eps
        self.numerics = numerics

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps, self.numerics.dtype)
