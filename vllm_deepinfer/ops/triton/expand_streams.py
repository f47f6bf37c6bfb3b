"""New residual streams from a sub-layer's output and the old ones."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from vllm_deepinfer.ops import streams as streams_op

COLUMNS_PER_PROGRAM = 1024


@triton.jit
def expand_streams_kernel(
    rows, streams, post, comb, out, columns, count: tl.constexpr, tile: tl.constexpr
):
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * tile + tl.arange(0, tile)
    held = column < columns
    row = tl.load(rows + token * columns + column, mask=held, other=0.0).to(tl.float32)
    first = token * count
    for new in tl.static_range(count):
        total = tl.zeros((tile,), tl.float32)
        for old in tl.static_range(count):
            position = streams + (first + old) * columns + column
            values = tl.load(position, mask=held, other=0.0).to(tl.float32)
            total += tl.load(comb + (first + old) * count + new) * values
        total += tl.load(post + first + new) * row
        target = out + (first + new) * columns + column
        tl.store(target, total.to(out.dtype.element_ty), mask=held)


def expand_streams(
    out: Tensor, streams: Tensor, post: Tensor, comb: Tensor, dtype: torch.dtype
) -> Tensor:
    """Stream j of ``[T, S, D]`` is ``post_j * out + sum_i comb[i, j] * streams_i``."""
    result = streams_op._expand_fake(out, streams, post, comb, dtype)
    tokens, count, columns = streams.shape
    if result.numel():
        expand_streams_kernel[tokens, triton.cdiv(columns, COLUMNS_PER_PROGRAM)](
            out.contiguous(), streams, post, comb.contiguous(), result, columns, count=count,
            tile=COLUMNS_PER_PROGRAM, num_warps=4, enable_fp_fusion=False,
        )  # fmt: skip
    return result
