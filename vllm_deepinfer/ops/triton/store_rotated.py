"""Rotary embedding, quantisation and the store into a cache, one row a program."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from vllm_deepinfer.ops import caches
from vllm_deepinfer.ops.triton.records import (
    RECORDS,
    cache_strides,
    encode_row,
    row_address,
)
from vllm_deepinfer.ops.triton.rotate import rotated_pairs


@triton.jit
def store_rotated_kernel(
    cache,
    rows,
    x,
    cos,
    sin,
    rows_per_block,
    block_stride,
    row_stride,
    record: tl.constexpr,
    width: tl.constexpr,
    pairs: tl.constexpr,
    rounded: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    row = tl.load(rows + token)
    if row >= 0:
        first, second = rotated_pairs(x, cos, sin, token, token, width, pairs, 1.0, width // 2)
        if rounded:
            first = first.to(tl.bfloat16).to(tl.float32)
            second = second.to(tl.bfloat16).to(tl.float32)
        address = row_address(cache, row, rows_per_block, block_stride, row_stride)
        encode_row(address, first, second, record, width)


def store_rotated(
    cache: Tensor,
    rows: Tensor,
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    kind: int,
    dtype: torch.dtype,
) -> None:
    """Rotate ``x`` ``[n, width]``, round it to ``dtype``, store it in cache rows ``[n]``."""
    if kind not in RECORDS:
        caches._store_reference(cache, rows, x, cos, sin, kind, dtype)
        return
    caches._store_fake(cache, rows, x, cos, sin, kind, dtype)
    if not rows.numel():
        return
    store_rotated_kernel[rows.numel(),](
        cache, rows.contiguous(), x.contiguous(), cos, sin, *cache_strides(cache),
        record=RECORDS[kind], width=x.shape[1], pairs=cos.shape[1],
        rounded=dtype == torch.bfloat16, num_warps=2, enable_fp_fusion=False,
    )  # fmt: skip
