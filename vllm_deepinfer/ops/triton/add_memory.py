"""Engram memory, gated and added to the streams, one token a program."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from vllm_deepinfer.ops import engram

COLUMNS_AT_ONCE = 512


@triton.jit
def add_memory_kernel(
    streams,
    memory,
    query_weight,
    key_weight,
    out,
    columns,
    eps,
    root,
    count: tl.constexpr,
    tile: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    stream = tl.arange(0, count)[:, None]
    memory += token * (count + 1) * columns
    stream_squares = tl.zeros((count,), tl.float32)
    key_squares = tl.zeros((count,), tl.float32)
    dot = tl.zeros((count,), tl.float32)
    for start in range(0, columns, tile):
        column = start + tl.arange(0, tile)[None, :]
        held = column < columns
        place = stream * columns + column
        x = tl.load(streams + token * count * columns + place, mask=held, other=0.0)
        key = tl.load(memory + place, mask=held, other=0.0).to(tl.float32)
        weight = tl.load(query_weight + place, mask=held, other=0.0).to(tl.float32)
        weight *= tl.load(key_weight + place, mask=held, other=0.0).to(tl.float32)
        x = x.to(tl.float32)
        stream_squares += tl.sum(x * x, axis=1)
        key_squares += tl.sum(key * key, axis=1)
        dot += tl.sum(x * weight * key, axis=1)
    width = columns.to(tl.float32) + tl.zeros((count,), tl.float32)
    factor = tl.div_rn(1.0, tl.sqrt_rn(tl.div_rn(stream_squares, width) + eps))
    factor *= tl.div_rn(1.0, tl.sqrt_rn(tl.div_rn(key_squares, width) + eps))
    dot = dot * factor * root
    signed = tl.sqrt_rn(tl.maximum(tl.abs(dot), 1e-6))
    # The sign bit decides, so that minus zero is negative.
    signed = tl.where(dot.to(tl.int32, bitcast=True) < 0, -signed, signed)
    gate = tl.div_rn(1.0, 1.0 + tl.exp(-signed))[:, None]
    for start in range(0, columns, tile):
        column = start + tl.arange(0, tile)[None, :]
        held = column < columns
        place = token * count * columns + stream * columns + column
        x = tl.load(streams + place, mask=held, other=0.0).to(tl.float32)
        value = tl.load(memory + count * columns + column, mask=held, other=0.0).to(tl.float32)
        tl.store(out + place, (x + gate * value).to(out.dtype.element_ty), mask=held)


def add_memory(
    streams: Tensor, memory: Tensor, query_weight: Tensor, key_weight: Tensor, eps: float
) -> Tensor:
    """Streams ``[T, S, D]`` plus memory ``[T, (S + 1) * D]``, gated per stream."""
    out = engram._memory_fake(streams, memory, query_weight, key_weight, eps)
    tokens, count, columns = streams.shape
    if out.numel():
        add_memory_kernel[tokens,](
            streams, memory.contiguous(), query_weight, key_weight, out, columns, eps,
            columns**-0.5, count=count, tile=COLUMNS_AT_ONCE, num_warps=8, enable_fp_fusion=False,
        )  # fmt: skip
    return out
