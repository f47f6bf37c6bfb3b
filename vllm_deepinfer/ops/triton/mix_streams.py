"""The residual streams of a token collapsed to one row."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from vllm_deepinfer.ops import streams as streams_op

COLUMNS_PER_PROGRAM = 1024


@triton.jit
def mix_streams_kernel(streams, pre, out, columns, count: tl.constexpr, tile: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * tile + tl.arange(0, tile)
    held = column < columns
    total = tl.zeros((tile,), tl.float32)
    for stream in tl.static_range(count):
        position = streams + (token * count + stream) * columns + column
        values = tl.load(position, mask=held, other=0.0).to(tl.float32)
        total += tl.load(pre + token * count + stream) * values
    tl.store(out + token * columns + column, total.to(out.dtype.element_ty), mask=held)


def mix_streams(streams: Tensor, pre: Tensor, dtype: torch.dtype) -> Tensor:
    """Collapse ``[T, S, D]`` to ``[T, D]`` with float32 weights ``[T, S]``."""
    out = streams_op._mix_fake(streams, pre, dtype)
    tokens, count, columns = streams.shape
    if out.numel():
        mix_streams_kernel[tokens, triton.cdiv(columns, COLUMNS_PER_PROGRAM)](
            streams, pre, out, columns, count=count, tile=COLUMNS_PER_PROGRAM, num_warps=4,
            enable_fp_fusion=False,
        )  # fmt: skip
    return out
