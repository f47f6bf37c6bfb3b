"""The inner loop of every matrix kernel: weight rows times tokens, columns in ascending order.

Weights come first in each product: the instructions take 64 or 128 rows of the first operand and
as few as 8 columns of the second, and a decode step has few tokens.
"""

from __future__ import annotations

import triton
import triton.language as tl

from vllm_deepinfer.ops.triton.number_formats import e2m1_values, scale_value


@triton.jit
def multiply_scaled(
    weight_rows,
    weight_scales,
    held_rows,
    token_rows,
    token_scales,
    held_tokens,
    columns,
    weight_format: tl.constexpr,
    tile_rows: tl.constexpr,
    tile_tokens: tl.constexpr,
    tile_columns: tl.constexpr,
):
    """Float32 ``[tile_rows, tile_tokens]`` of e4m3 tokens and ``weight_format`` weights, uint8.

    ``weight_rows`` and ``weight_scales`` are pointers ``[tile_rows]`` to a row's first byte and
    UE8M0 scale, ``token_rows`` and ``token_scales`` the same of tokens. SM100 multiplies scaled
    codes in one instruction; for SM90 Triton turns them into bfloat16, which is exact.
    """
    per_byte: tl.constexpr = 2 if weight_format == "e2m1" else 1
    column = tl.arange(0, tile_columns)
    byte = tl.arange(0, tile_columns // per_byte)
    group = tl.arange(0, tile_columns // 32)
    total = tl.zeros((tile_rows, tile_tokens), tl.float32)
    for start in range(0, columns, tile_columns):
        held_columns = start + column < columns
        held_bytes = start // per_byte + byte < columns // per_byte
        held_groups = start // 32 + group < columns // 32
        weight = tl.load(
            weight_rows[:, None] + start // per_byte + byte[None, :],
            mask=held_rows[:, None] & held_bytes[None, :],
            other=0,
        )
        weight_scale = tl.load(
            weight_scales[:, None] + start // 32 + group[None, :],
            mask=held_rows[:, None] & held_groups[None, :],
            other=0,
        )
        token = tl.load(
            token_rows[None, :] + start + column[:, None],
            mask=held_tokens[None, :] & held_columns[:, None],
            other=0,
        )
        token_scale = tl.load(
            token_scales[:, None] + start // 32 + group[None, :],
            mask=held_tokens[:, None] & held_groups[None, :],
            other=0,
        )
        total = tl.dot_scaled(
            weight, weight_scale, weight_format, token, token_scale, "e4m3", total
        )
    return total


@triton.jit
def multiply_plain(
    weight_rows,
    weight_scales,
    held_rows,
    token_rows,
    held_tokens,
    columns,
    weight_format: tl.constexpr,
    tile_rows: tl.constexpr,
    tile_tokens: tl.constexpr,
    tile_columns: tl.constexpr,
):
    """The same for tokens of bfloat16 or float32 without scales.

    ``weight_format`` may be "bf16" here, whose ``weight_scales`` are not read. bfloat16 meets
    bfloat16 as it is; everything else is multiplied in float32, without TF32.
    """
    column = tl.arange(0, tile_columns)
    total = tl.zeros((tile_rows, tile_tokens), tl.float32)
    for start in range(0, columns, tile_columns):
        held_columns = start + column < columns
        held = held_rows[:, None] & held_columns[None, :]
        token = tl.load(
            token_rows[None, :] + start + column[:, None],
            mask=held_tokens[None, :] & held_columns[:, None],
            other=0.0,
        )
        if weight_format == "bf16":
            weight = tl.load(weight_rows[:, None] + start + column[None, :], mask=held, other=0.0)
            if token.dtype == tl.bfloat16:
                total = tl.dot(weight, token, total)
            else:
                total = tl.dot(weight.to(tl.float32), token, total, input_precision="ieee")
        else:
            if weight_format == "e2m1":
                pair = tl.load(
                    weight_rows[:, None] + (start + column[None, :]) // 2, mask=held, other=0
                )
                weight = e2m1_values((pair >> ((column % 2) * 4).to(tl.uint8)[None, :]) & 15)
            else:
                code = tl.load(weight_rows[:, None] + start + column[None, :], mask=held, other=0)
                weight = code.to(tl.float8e4nv, bitcast=True).to(tl.float32)
            scale = tl.load(
                weight_scales[:, None] + (start + column[None, :]) // 32, mask=held, other=0
            )
            weight *= scale_value(scale)
            total = tl.dot(weight, token.to(tl.float32), total, input_precision="ieee")
    return total
