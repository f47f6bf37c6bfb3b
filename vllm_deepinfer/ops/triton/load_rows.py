"""Rows of a cache as float32 values."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from vllm_deepinfer.ops import caches
from vllm_deepinfer.ops.triton.records import (
    RECORDS,
    cache_strides,
    decode_rows,
    row_address,
)

ROWS_PER_PROGRAM = 8


@triton.jit
def load_rows_kernel(
    cache,
    rows,
    out,
    num_rows,
    rows_per_block,
    block_stride,
    row_stride,
    record: tl.constexpr,
    width: tl.constexpr,
    tile_rows: tl.constexpr,
):
    number = tl.program_id(0).to(tl.int64) * tile_rows + tl.arange(0, tile_rows)
    wanted = number < num_rows
    row = tl.load(rows + number, mask=wanted, other=-1)
    address = row_address(cache, row, rows_per_block, block_stride, row_stride)
    values = decode_rows(address, row >= 0, record, width, 0, width)
    position = out + number[:, None] * width + tl.arange(0, width)[None, :]
    tl.store(position, values, mask=wanted[:, None])


def load_rows(cache: Tensor, rows: Tensor, kind: int, width: int) -> Tensor:
    """Float32 ``[..., width]`` of cache rows ``[...]``; zeros where they are negative."""
    if kind not in RECORDS:
        return caches._load_reference(cache, rows, kind, width)
    out = caches._load_fake(cache, rows, kind, width)
    if rows.numel():
        load_rows_kernel[triton.cdiv(rows.numel(), ROWS_PER_PROGRAM),](
            cache, rows.contiguous(), out, rows.numel(), *cache_strides(cache),
            record=RECORDS[kind], width=width, tile_rows=ROWS_PER_PROGRAM, num_warps=4,
            enable_fp_fusion=False,
        )  # fmt: skip
    return out
