"""Rows of an engram table, gathered and dequantised."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from vllm_deepinfer.ops import engram
from vllm_deepinfer.ops.triton.number_formats import scale_value

ROWS_PER_PROGRAM = 4


@triton.jit
def load_table_rows_kernel(
    weight, scale, rows, out, num_rows, width, tile: tl.constexpr, tile_rows: tl.constexpr
):
    number = tl.program_id(0).to(tl.int64) * tile_rows + tl.arange(0, tile_rows)
    wanted = number < num_rows
    row = tl.load(rows + number, mask=wanted, other=0)[:, None]
    column = tl.arange(0, tile)[None, :]
    held = wanted[:, None] & (column < width)
    code = tl.load(weight + row * width + column, mask=held, other=0)
    stored = tl.load(scale + row * (width // 32) + column // 32, mask=held, other=0)
    values = code.to(tl.float8e4nv, bitcast=True).to(tl.float32) * scale_value(stored)
    target = out + number[:, None] * width + column
    tl.store(target, values.to(out.dtype.element_ty), mask=held)


def load_table_rows(weight: Tensor, scale: Tensor, rows: Tensor, dtype: torch.dtype) -> Tensor:
    """Rows ``[T, columns]`` of an e4m3 table ``[rows, n]``, side by side ``[T, columns * n]``."""
    out = engram._table_fake(weight, scale, rows, dtype)
    if out.numel():
        width = weight.shape[1]
        load_table_rows_kernel[triton.cdiv(rows.numel(), ROWS_PER_PROGRAM),](
            weight.view(torch.uint8), scale.view(torch.uint8), rows.contiguous(), out,
            rows.numel(), width, tile=triton.next_power_of_2(width), tile_rows=ROWS_PER_PROGRAM,
            num_warps=4, enable_fp_fusion=False,
        )  # fmt: skip
    return out
