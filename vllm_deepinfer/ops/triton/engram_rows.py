"""Hashed n-grams to rows of the engram tables."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from vllm_deepinfer.ops import engram

TOKENS_PER_PROGRAM = 32


@triton.jit
def engram_rows_kernel(
    ngrams,
    token_map,
    multipliers,
    primes,
    offsets,
    out,
    num_tokens,
    map_size,
    pad_id,
    size: tl.constexpr,
    heads: tl.constexpr,
    tile_heads: tl.constexpr,
    tile_tokens: tl.constexpr,
):
    token = (tl.program_id(0) * tile_tokens + tl.arange(0, tile_tokens)).to(tl.int64)
    held = token < num_tokens
    head = tl.arange(0, tile_heads)
    hashed = tl.zeros((tile_tokens,), tl.int64)
    blocked = token < 0
    for offset in tl.static_range(size):
        number = tl.load(ngrams + token * size + offset, mask=held, other=0)
        # A token that is dead blocks itself and everything older.
        blocked |= (number < 0) | (number >= map_size)
        known = held & (blocked == 0)
        compressed = tl.where(known, tl.load(token_map + number, mask=known, other=0), pad_id)
        hashed ^= compressed * tl.load(multipliers + offset)
        if offset > 0:
            table = (offset - 1) * heads + head
            prime = tl.load(primes + table, mask=head < heads, other=1)
            row = hashed[:, None] % prime[None, :]
            row = tl.where(row < 0, row + prime[None, :], row)
            row += tl.load(offsets + table, mask=head < heads, other=0)[None, :]
            target = out + token[:, None] * (heads * (size - 1)) + table[None, :]
            tl.store(target, row, mask=held[:, None] & (head < heads)[None, :])


def engram_rows(
    ngrams: Tensor,
    token_map: Tensor,
    pad_id: int,
    multipliers: Tensor,
    primes: Tensor,
    offsets: Tensor,
) -> Tensor:
    """Table rows, int64 ``[T, (n - 1) * heads]``, of tokens with their predecessors ``[T, n]``."""
    out = engram._rows_fake(ngrams, token_map, pad_id, multipliers, primes, offsets)
    if out.numel():
        tokens, size = ngrams.shape
        heads = primes.shape[1]
        engram_rows_kernel[triton.cdiv(tokens, TOKENS_PER_PROGRAM),](
            ngrams.contiguous(), token_map, multipliers, primes, offsets, out, tokens,
            token_map.shape[0], pad_id, size=size, heads=heads,
            tile_heads=triton.next_power_of_2(heads), tile_tokens=TOKENS_PER_PROGRAM, num_warps=4,
            enable_fp_fusion=False,
        )  # fmt: skip
    return out
