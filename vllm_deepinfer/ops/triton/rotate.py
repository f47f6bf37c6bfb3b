"""Rotary embedding of the last columns, one row a program."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from vllm_deepinfer.ops import rotation


@triton.jit
def rotated_pairs(x, cos, sin, token, row, columns, pairs, direction, tile_pairs: tl.constexpr):
    """Even and odd columns of a row, float32 ``[tile_pairs]``, the last ``pairs`` of them rotated.

    ``x`` points to rows of ``columns``; cosines and sines are those of ``token``. Columns beyond
    the row are zero.
    """
    pair = tl.arange(0, tile_pairs)
    held = pair < columns // 2
    even = tl.load(x + row * columns + 2 * pair, mask=held, other=0.0).to(tl.float32)
    odd = tl.load(x + row * columns + 2 * pair + 1, mask=held, other=0.0).to(tl.float32)
    first = columns // 2 - pairs
    turned = held & (pair >= first)
    c = tl.load(cos + token * pairs + pair - first, mask=turned, other=1.0)
    s = tl.load(sin + token * pairs + pair - first, mask=turned, other=0.0) * direction
    return (
        tl.where(turned, even * c - odd * s, even),
        tl.where(turned, even * s + odd * c, odd),
    )


@triton.jit
def rotate_kernel(x, cos, sin, out, heads, columns, pairs, direction, tile_pairs: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    even, odd = rotated_pairs(x, cos, sin, row // heads, row, columns, pairs, direction, tile_pairs)
    column = tl.arange(0, 2 * tile_pairs)
    result = tl.interleave(even, odd).to(out.dtype.element_ty)
    tl.store(out + row * columns + column, result, mask=column < columns)


def rotate(
    x: Tensor, cos: Tensor, sin: Tensor, dtype: torch.dtype, backwards: bool = False
) -> Tensor:
    """Rotate interleaved pairs of the last columns of ``[T, ..., n]``, rounded to ``dtype``."""
    out = rotation._rotate_fake(x, cos, sin, dtype, backwards)
    if out.numel():
        columns = x.shape[-1]
        rotate_kernel[x.numel() // columns,](
            x.contiguous(), cos, sin, out, x.shape[1] if x.dim() == 3 else 1, columns,
            cos.shape[1], -1.0 if backwards else 1.0,
            tile_pairs=triton.next_power_of_2(columns // 2), num_warps=2, enable_fp_fusion=False,
        )  # fmt: skip
    return out
