"""The routed experts of a layer, as one operation (section 2.10 of the V4.1 specification)."""

from __future__ import annotations

import torch
from torch import Tensor

from vllm_deepinfer.ops import reference_linear
from vllm_deepinfer.ops.formats import FP4_GROUP
from vllm_deepinfer.ops.library import OperationError, cpu_kernels, define, refuse, require
from vllm_deepinfer.ops.linear import (
    SCALE_DTYPES,
    address,
    check_output_dtype,
    check_rows,
    row_source,
)

NAME = "fp4_experts"
PACKED_DTYPES = (torch.int8, torch.uint8)


def _check_stack(
    argument: str, weight: Tensor, scale: Tensor, experts: int, rows: int, columns: int
) -> None:
    packed = (experts, rows, columns // 2)
    require(NAME, argument, weight, PACKED_DTYPES, packed, contiguous=True)
    groups = (experts, rows, columns // FP4_GROUP)
    if scale.shape != groups or scale.dtype not in SCALE_DTYPES or not scale.is_contiguous():
        require(NAME, f"{argument}_scale", scale, SCALE_DTYPES, groups, contiguous=True)


def _check(
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
) -> None:
    if w1.dim() != 3 or w1.shape[1] % FP4_GROUP or w1.shape[2] % (FP4_GROUP // 2):
        raise refuse(NAME, "w1", w1, "int8 or uint8 [experts, I, D / 2], I and D multiples of 32")
    experts, inter, hidden = w1.shape[0], w1.shape[1], 2 * w1.shape[2]
    if not inter or not hidden:
        raise refuse(NAME, "w1", w1, "int8 or uint8 [experts, I, D / 2], I and D positive")
    _check_stack("w1", w1, w1_scale, experts, inter, hidden)
    _check_stack("w3", w3, w3_scale, experts, inter, hidden)
    _check_stack("w2", w2, w2_scale, experts, hidden, inter)
    check_rows(NAME, x, scales, hidden)
    tokens = x.shape[0]
    require(NAME, "chosen", chosen, (torch.int64,), (tokens, "k"))
    require(NAME, "weights", weights, (torch.float32,), (tokens, chosen.shape[1]))
    if not limit > 0:
        raise OperationError(f"{NAME}: limit is {limit}; allowed: positive numbers.")
    check_output_dtype(NAME, dtype)


def _reference(*arguments) -> Tensor:
    _check(*arguments)
    return reference_linear.fp4_experts(*arguments)


def _fake(*arguments) -> Tensor:
    _check(*arguments)
    chosen, w2, dtype = arguments[2], arguments[8], arguments[12]
    return chosen.new_empty(*chosen.shape, w2.shape[1], dtype=dtype)


def _cpu(
    x, scales, chosen, weights, w1, w1_scale, w3, w3_scale, w2, w2_scale, first_expert, limit, dtype
) -> Tensor:
    out = _fake(
        x, scales, chosen, weights, w1, w1_scale, w3, w3_scale, w2, w2_scale, first_expert, limit,
        dtype,
    )  # fmt: skip
    x, chosen, weights = x.contiguous(), chosen.contiguous(), weights.contiguous()
    scales = None if scales is None else scales.contiguous()
    cpu_kernels().experts(
        x.data_ptr(),
        row_source(x),
        address(scales),
        x.shape[0],
        x.shape[1],
        w1.shape[1],
        chosen.data_ptr(),
        weights.data_ptr(),
        chosen.shape[1],
        w1.data_ptr(),
        w1_scale.data_ptr(),
        w3.data_ptr(),
        w3_scale.data_ptr(),
        w2.data_ptr(),
        w2_scale.data_ptr(),
        w1.shape[0],
        first_expert,
        limit,
        out.data_ptr(),
        dtype == torch.bfloat16,
        torch.get_num_threads(),
    )
    return out


fp4_experts = define(
    "fp4_experts(Tensor x, Tensor? scales, Tensor chosen, Tensor weights, Tensor w1, "
    "Tensor w1_scale, Tensor w3, Tensor w3_scale, Tensor w2, Tensor w2_scale, int first_expert, "
    "float limit, ScalarType dtype) -> Tensor",
    _reference,
    _fake,
    _cpu,
)
"""Outputs ``[T, k, D]`` of the experts each token chose, one slot a choice, not yet summed.

Args:
    x, scales: e4m3 codes ``[T, D]`` with scale bytes ``[T, D / 32]``, or plain rows and None. With
        codes the inner values are quantised too, after the router's weight was applied.
    chosen: int64 ``[T, k]`` expert numbers; slots of experts not held here are zero.
    weights: float32 ``[T, k]``, the router's.
    w1, w3, w2: packed e2m1 ``[experts, I, D / 2]`` (twice) and ``[experts, D, I / 2]``, with UE8M0
        scales per row and 32 columns; the experts held are ``first_expert`` onwards.
    limit: bound of the clamped SwiGLU.
    dtype: bfloat16 or float32, to which gate, up, inner values and outputs are rounded.
"""
