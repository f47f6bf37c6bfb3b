"""Torch reference of the linear operations: what every kernel of them must reproduce.

Products and sums are float32; a weight's value is its code times its scale, and so is an
activation's. Shapes: T tokens, k chosen experts, D hidden size, I inner size of an expert.
Source: V4.1 specification, sections 2.4 and 2.10.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vllm_deepinfer.ops import formats
from vllm_deepinfer.ops.reference import clamped_swiglu


def quantise_fp8(x: Tensor) -> tuple[Tensor, Tensor]:
    """e4m3 codes ``[T, n]`` and UE8M0 bytes ``[T, n/32]``, uint8, of ``[T, n]``."""
    codes, scale = formats.quantise_fp8(x)
    return codes, formats.exponent_byte(scale)


def row_values(x: Tensor, scales: Tensor | None) -> Tensor:
    """Float32 ``[T, n]``: of e4m3 codes with their scale bytes, or of plain rows without."""
    return x.to(torch.float32) if scales is None else formats.dequantise_fp8_rows(x, scales)


def fp8_linear(
    x: Tensor,
    scales: Tensor | None,
    weight: Tensor,
    weight_scale: Tensor,
    dtype: torch.dtype,
    groups: int = 1,
) -> Tensor:
    """``x @ weight.T`` for a weight in 32x32 blocks, rounded to ``dtype`` ``[T, out]``.

    With ``groups``, columns of ``x`` and rows of ``weight`` are divided among them.
    """
    values = formats.dequantise_fp8_blocks(weight, weight_scale).unflatten(0, (groups, -1))
    grouped = row_values(x, scales).unflatten(-1, (groups, -1)).transpose(0, 1)
    return torch.bmm(grouped, values.transpose(1, 2)).transpose(0, 1).flatten(1).to(dtype)


def plain_linear(x: Tensor, weight: Tensor) -> Tensor:
    """``x @ weight.T`` for a bfloat16 weight, float32 ``[T, out]``."""
    return torch.nn.functional.linear(x.to(torch.float32), weight.to(torch.float32))


def fp4_experts(
    x: Tensor,
    scales: Tensor | None,
    chosen: Tensor,
    weights: Tensor,
    w1: Tensor,
    w1_scale: Tensor,
    w3: Tensor,
    w3_scale: Tensor,
    w2: Tensor,
    w2_scale: Tensor,
    first_expert: int,
    limit: float,
    dtype: torch.dtype,
) -> Tensor:
    """Outputs ``[T, k, D]`` of each token's chosen experts, rounded to ``dtype``.

    Zero where the expert is not among those held, ``first_expert`` onwards. The router's weight is
    applied before the second quantisation, which plain rows go without.
    """
    outputs = torch.zeros(*chosen.shape, w2.shape[1], dtype=dtype, device=x.device)
    rows = row_values(x, scales)
    for expert in chosen.unique().tolist():
        held = expert - first_expert
        if not 0 <= held < len(w1):
            continue
        token, slot = (chosen == expert).nonzero(as_tuple=True)
        gate, up = (
            torch.nn.functional.linear(rows[token], formats.dequantise_fp4_rows(w, scale)).to(dtype)
            for w, scale in ((w1[held], w1_scale[held]), (w3[held], w3_scale[held]))
        )
        inner = (clamped_swiglu(gate, up, limit) * weights[token, slot].unsqueeze(-1)).to(dtype)
        inner = inner.to(torch.float32) if scales is None else formats.fake_quantise_fp8(inner)
        down = formats.dequantise_fp4_rows(w2[held], w2_scale[held])
        outputs[token, slot] = torch.nn.functional.linear(inner, down).to(dtype)
    return outputs
