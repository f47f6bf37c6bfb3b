"""Dynamic quantisation of activations, as an operation (section 2.4 of the V4.1 specification)."""

from __future__ import annotations

import torch
from torch import Tensor

from vllm_deepinfer.ops import reference_linear
from vllm_deepinfer.ops.formats import FP8_GROUP
from vllm_deepinfer.ops.library import cpu_kernels, define, refuse

ROW_DTYPES = (torch.bfloat16, torch.float32)


def _check(x: Tensor) -> None:
    if x.dtype not in ROW_DTYPES or x.dim() != 2 or x.shape[1] % FP8_GROUP or not x.shape[1]:
        raise refuse(
            "quantise_fp8", "x", x, "bfloat16 or float32 [T, n], n a positive multiple of 32"
        )


def _reference(x: Tensor) -> tuple[Tensor, Tensor]:
    _check(x)
    return reference_linear.quantise_fp8(x)


def _fake(x: Tensor) -> tuple[Tensor, Tensor]:
    _check(x)
    return (
        torch.empty_like(x, dtype=torch.float8_e4m3fn, memory_format=torch.contiguous_format),
        x.new_empty(x.shape[0], x.shape[1] // FP8_GROUP, dtype=torch.uint8),
    )


def _cpu(x: Tensor) -> tuple[Tensor, Tensor]:
    codes, scales = _fake(x)
    x = x.contiguous()
    cpu_kernels().quantise_fp8(
        x.data_ptr(),
        x.dtype == torch.bfloat16,
        x.shape[0],
        x.shape[1],
        codes.data_ptr(),
        scales.data_ptr(),
        torch.get_num_threads(),
    )
    return codes, scales


quantise_fp8 = define("quantise_fp8(Tensor x) -> (Tensor, Tensor)", _reference, _fake, _cpu)
"""``[T, n]`` to e4m3 codes ``[T, n]`` and UE8M0 scale bytes ``[T, n/32]``, uint8.

A group of 32 that is not finite becomes NaN: scale byte 255.
"""
