"""Linear layers over bfloat16 weights, with float32 results."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from vllm_deepinfer.ops import linear
from vllm_deepinfer.ops.triton.matmul import multiply_plain
from vllm_deepinfer.ops.triton.tiles import plain_tiles


@triton.jit
def plain_linear_kernel(
    x,
    weight,
    out,
    num_tokens,
    num_rows,
    columns,
    tile_rows: tl.constexpr,
    tile_tokens: tl.constexpr,
    tile_columns: tl.constexpr,
):
    token = (tl.program_id(0) * tile_tokens + tl.arange(0, tile_tokens)).to(tl.int64)
    row = (tl.program_id(1) * tile_rows + tl.arange(0, tile_rows)).to(tl.int64)
    held_rows, held_tokens = row < num_rows, token < num_tokens
    total = multiply_plain(
        weight + row * columns, weight, held_rows, x + token * columns, held_tokens, columns,
        "bf16", tile_rows, tile_tokens, tile_columns,
    )  # fmt: skip
    position = out + token[None, :] * num_rows + row[:, None]
    tl.store(position, total, mask=held_rows[:, None] & held_tokens[None, :])


def plain_linear(x: Tensor, weight: Tensor) -> Tensor:
    """bfloat16 or float32 ``x`` ``[T, in]`` times bfloat16 ``weight`` ``[out, in]``: float32."""
    out = linear._plain_fake(x, weight)
    if not out.numel():
        return out
    tiles = plain_tiles(x.shape[0], wide=x.dtype == torch.float32)
    grid = (triton.cdiv(x.shape[0], tiles.tokens), triton.cdiv(weight.shape[0], tiles.rows))
    plain_linear_kernel[grid](
        x.contiguous(), weight, out, x.shape[0], weight.shape[0], weight.shape[1],
        **tiles.launch_options(),
    )  # fmt: skip
    return out
