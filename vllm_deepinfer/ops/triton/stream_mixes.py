"""Mixing coefficients of the residual streams, in two kernels.

A token's 24 sums run over 20480 columns, too many for one program when there are few tokens. So
they are divided into parts of a fixed number of columns, which the second kernel adds in order:
however many tokens come along, a token's sums are divided and added alike.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from vllm_deepinfer.ops import streams as streams_op

PART_COLUMNS = 512
TOKENS_PER_PROGRAM = 16


@triton.jit
def stream_products_kernel(
    streams,
    projection,
    products,
    squares,
    num_tokens,
    columns,
    num_mixes: tl.constexpr,
    part_columns: tl.constexpr,
    tile_mixes: tl.constexpr,
    tile_tokens: tl.constexpr,
    tile_columns: tl.constexpr,
):
    """Products ``[parts, T, mixes]`` with one part of the columns, and sums of squares."""
    token = (tl.program_id(0) * tile_tokens + tl.arange(0, tile_tokens)).to(tl.int64)
    held = token < num_tokens
    mix = tl.arange(0, tile_mixes)
    part = tl.program_id(1)
    total = tl.zeros((tile_mixes, tile_tokens), tl.float32)
    square = tl.zeros((tile_tokens,), tl.float32)
    for start in range(0, part_columns, tile_columns):
        column = part * part_columns + start + tl.arange(0, tile_columns)
        inside = column < columns
        x = tl.load(
            streams + token[None, :] * columns + column[:, None],
            mask=held[None, :] & inside[:, None],
            other=0.0,
        ).to(tl.float32)
        weight = tl.load(
            projection + mix[:, None] * columns + column[None, :],
            mask=(mix < num_mixes)[:, None] & inside[None, :],
            other=0.0,
        )
        total = tl.dot(weight, x, total, input_precision="ieee")
        square += tl.sum(x * x, axis=0)
    first = part.to(tl.int64) * num_tokens + token
    target = products + first[None, :] * num_mixes + mix[:, None]
    tl.store(target, total, mask=held[None, :] & (mix < num_mixes)[:, None])
    tl.store(squares + first, square, mask=held)


@triton.jit
def _sigmoid(x):
    return tl.div_rn(1.0, 1.0 + tl.exp(-x))


@triton.jit
def stream_mixes_kernel(
    products,
    squares,
    scale,
    base,
    pre,
    post,
    comb,
    num_tokens,
    columns,
    num_parts,
    rms_eps,
    hc_eps,
    iterations,
    count: tl.constexpr,
    tile_tokens: tl.constexpr,
):
    """Sums of the parts, then sigmoids and the doubly normalised combination."""
    mixes: tl.constexpr = 2 * count + count * count
    token = (tl.program_id(0) * tile_tokens + tl.arange(0, tile_tokens)).to(tl.int64)
    held = token < num_tokens
    stream = tl.arange(0, count)
    pair = stream[:, None] * count + stream[None, :]
    some, many = held[:, None], held[:, None, None]
    square = tl.zeros((tile_tokens,), tl.float32)
    to_pre = tl.zeros((tile_tokens, count), tl.float32)
    to_post = tl.zeros((tile_tokens, count), tl.float32)
    to_comb = tl.zeros((tile_tokens, count, count), tl.float32)
    for part in range(num_parts):
        row = part * num_tokens + token
        square += tl.load(squares + row, mask=held, other=0.0)
        single = products + row[:, None] * mixes + stream[None, :]
        to_pre += tl.load(single, mask=some, other=0.0)
        to_post += tl.load(single + count, mask=some, other=0.0)
        both = products + row[:, None, None] * mixes + 2 * count + pair[None, :, :]
        to_comb += tl.load(both, mask=many, other=0.0)
    mean = tl.div_rn(square, columns.to(tl.float32))
    factor = tl.div_rn(1.0, tl.sqrt_rn(mean + rms_eps))
    to_pre = to_pre * factor[:, None] * tl.load(scale) + tl.load(base + stream)[None, :]
    tl.store(pre + token[:, None] * count + stream[None, :], _sigmoid(to_pre) + hc_eps, mask=some)
    to_post = to_post * factor[:, None] * tl.load(scale + 1)
    to_post += tl.load(base + count + stream)[None, :]
    tl.store(post + token[:, None] * count + stream[None, :], 2.0 * _sigmoid(to_post), mask=some)
    mixed = to_comb * factor[:, None, None] * tl.load(scale + 2)
    mixed += tl.load(base + 2 * count + pair)[None, :, :]
    mixed = tl.exp(mixed - tl.max(mixed, axis=2, keep_dims=True))
    mixed = _normalised(mixed, tl.sum(mixed, axis=2, keep_dims=True)) + hc_eps
    mixed = _normalised(mixed, tl.sum(mixed, axis=1, keep_dims=True) + hc_eps)
    for _ in range(iterations - 1):
        mixed = _normalised(mixed, tl.sum(mixed, axis=2, keep_dims=True) + hc_eps)
        mixed = _normalised(mixed, tl.sum(mixed, axis=1, keep_dims=True) + hc_eps)
    tl.store(comb + token[:, None, None] * count * count + pair[None, :, :], mixed, mask=many)


@triton.jit
def _normalised(mixed, total):
    shape: tl.constexpr = mixed.shape
    return tl.div_rn(mixed, tl.broadcast_to(total, shape))


def stream_mixes(
    streams: Tensor,
    projection: Tensor,
    scale: Tensor,
    base: Tensor,
    rms_eps: float,
    hc_eps: float,
    iterations: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Float32 pre and post ``[T, S]`` and the combination ``[T, S, S]`` of ``[T, S, D]``."""
    out = streams_op._mixes_fake(streams, projection, scale, base, rms_eps, hc_eps, iterations)
    tokens, count, _ = streams.shape
    if not tokens:
        return out
    mixes, columns = projection.shape
    parts = triton.cdiv(columns, PART_COLUMNS)
    products, squares = scale.new_empty(parts, tokens, mixes), scale.new_empty(parts, tokens)
    blocks = triton.cdiv(tokens, TOKENS_PER_PROGRAM)
    stream_products_kernel[blocks, parts](
        streams, projection, products, squares, tokens, columns, num_mixes=mixes,
        part_columns=PART_COLUMNS, tile_mixes=triton.next_power_of_2(mixes),
        tile_tokens=TOKENS_PER_PROGRAM, tile_columns=64, num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip
    stream_mixes_kernel[blocks,](
        products, squares, scale, base, *out, tokens, columns, parts, rms_eps, hc_eps, iterations,
        count=count, tile_tokens=TOKENS_PER_PROGRAM, num_warps=1, enable_fp_fusion=False,
    )  # fmt: skip
    return out
