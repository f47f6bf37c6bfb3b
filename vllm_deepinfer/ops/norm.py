"""Root-mean-square normalisation, as an operation (section 2.3 of the V4.1 specification)."""

from __future__ import annotations

import torch
from torch import Tensor

from vllm_deepinfer.ops import reference
from vllm_deepinfer.ops.library import cpu_kernels, define, refuse
from vllm_deepinfer.ops.linear import check_output_dtype
from vllm_deepinfer.ops.quantise import ROW_DTYPES

LANES = 16
"""Widths of rows are multiples of the kernels' lanes."""


def _check(x: Tensor, weight: Tensor, dtype: torch.dtype) -> None:
    if weight.dtype != torch.bfloat16 or weight.dim() != 1 or not weight.is_contiguous():
        raise refuse("rms_norm", "weight", weight, "bfloat16 [n], contiguous")
    width = weight.shape[0]
    if x.dtype not in ROW_DTYPES or x.dim() != 2 or x.shape[1] != width or width % LANES:
        allowed = f"bfloat16 or float32 [T, {width}], the width a multiple of {LANES}"
        raise refuse("rms_norm", "x", x, allowed)
    check_output_dtype("rms_norm", dtype)


def _reference(x, weight, eps, dtype):
    _check(x, weight, dtype)
    return reference.rms_norm(x, weight, eps, dtype)


def _fake(x, weight, eps, dtype):
    _check(x, weight, dtype)
    return x.new_empty(x.shape, dtype=dtype)


def _cpu(x, weight, eps, dtype):
    out = _fake(x, weight, eps, dtype)
    x = x.contiguous()
    cpu_kernels().rms_norm(
        x.data_ptr(),
        x.dtype == torch.bfloat16,
        weight.data_ptr(),
        x.shape[0],
        x.shape[1],
        eps,
        out.data_ptr(),
        dtype == torch.bfloat16,
        torch.get_num_threads(),
    )
    return out


rms_norm = define(
    "rms_norm(Tensor x, Tensor weight, float eps, ScalarType dtype) -> Tensor",
    _reference,
    _fake,
    _cpu,
)
"""``weight * x / sqrt(mean(x**2) + eps)`` of bfloat16 or float32 ``[T, n]``, rounded to ``dtype``.

``weight`` is bfloat16 ``[n]``; products and sums are float32.
"""
