"""Linear layers over e4m3 weights with a UE8M0 scale per 32x32 block."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from vllm_deepinfer.ops import linear
from vllm_deepinfer.ops.triton.matmul import multiply_plain, multiply_scaled
from vllm_deepinfer.ops.triton.tiles import plain_tiles, scaled_tiles


@triton.jit
def fp8_linear_kernel(
    x,
    scales,
    weight,
    weight_scales,
    out,
    num_tokens,
    group_rows,
    groups,
    columns,
    scaled: tl.constexpr,
    tile_rows: tl.constexpr,
    tile_tokens: tl.constexpr,
    tile_columns: tl.constexpr,
):
    # Neighbouring programs share a weight tile, so it comes from memory once.
    token = (tl.program_id(0) * tile_tokens + tl.arange(0, tile_tokens)).to(tl.int64)
    tiles_per_group = tl.cdiv(group_rows, tile_rows)
    group = tl.program_id(1) // tiles_per_group
    in_group = tl.program_id(1) % tiles_per_group * tile_rows + tl.arange(0, tile_rows)
    row = (group * group_rows + in_group).to(tl.int64)
    held_rows, held_tokens = in_group < group_rows, token < num_tokens
    weight_rows = weight + row * columns
    block_scales = weight_scales + row // 32 * (columns // 32)
    token_rows = x + (token * groups + group) * columns
    if scaled:
        token_scales = scales + (token * groups + group) * (columns // 32)
        total = multiply_scaled(
            weight_rows, block_scales, held_rows, token_rows, token_scales, held_tokens, columns,
            "e4m3", tile_rows, tile_tokens, tile_columns,
        )  # fmt: skip
    else:
        total = multiply_plain(
            weight_rows, block_scales, held_rows, token_rows, held_tokens, columns,
            "e4m3", tile_rows, tile_tokens, tile_columns,
        )  # fmt: skip
    position = out + token[None, :] * (groups * group_rows) + row[:, None]
    held = held_rows[:, None] & held_tokens[None, :]
    tl.store(position, total.to(out.dtype.element_ty), mask=held)


def fp8_linear(
    x: Tensor,
    scales: Tensor | None,
    weight: Tensor,
    weight_scale: Tensor,
    dtype: torch.dtype,
    groups: int = 1,
) -> Tensor:
    """``x`` ``[T, groups * in]`` times ``weight`` ``[out, in]``: ``[T, out]`` of ``dtype``."""
    out = linear._fp8_fake(x, scales, weight, weight_scale, dtype, groups)
    num_tokens, group_rows = x.shape[0], weight.shape[0] // groups
    if not out.numel():
        return out
    x = x.contiguous()
    if scales is None:
        tiles = plain_tiles(num_tokens, wide=True)
    else:
        tiles = scaled_tiles(num_tokens, weight.shape[0])
        x, scales = x.view(torch.uint8), scales.contiguous()
    grid = (
        triton.cdiv(num_tokens, tiles.tokens),
        groups * triton.cdiv(group_rows, tiles.rows),
    )
    fp8_linear_kernel[grid](
        x, scales, weight.view(torch.uint8), weight_scale.view(torch.uint8), out,
        num_tokens, group_rows, groups, weight.shape[1],
        scaled=scales is not None, **tiles.launch_options(),
    )  # fmt: skip
    return out
