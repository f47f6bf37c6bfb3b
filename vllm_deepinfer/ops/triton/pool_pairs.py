"""Pairs of tokens pooled, the older of which may wait in the ring of an earlier step."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from vllm_deepinfer.ops import caches
from vllm_deepinfer.ops.triton.records import cache_strides, row_address


@triton.jit
def pool_pairs_kernel(
    values,
    scores,
    ring,
    closing,
    partner_rows,
    out,
    width,
    rows_per_block,
    block_stride,
    row_stride,
    tile: tl.constexpr,
):
    pair = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, tile)
    held = column < width
    token = tl.load(closing + pair)
    row = tl.load(partner_rows + pair)
    if row >= 0:
        old = row_address(ring, row, rows_per_block, block_stride, row_stride) + column
        older_value, older_score = old, old + width
    else:
        older_value = values + (token - 1) * width + column
        older_score = scores + (token - 1) * width + column
    first = tl.load(older_value, mask=held, other=0.0)
    first_score = tl.load(older_score, mask=held, other=0.0)
    second = tl.load(values + token * width + column, mask=held, other=0.0)
    second_score = tl.load(scores + token * width + column, mask=held, other=0.0)
    highest = tl.maximum(first_score, second_score)
    first_weight, second_weight = tl.exp(first_score - highest), tl.exp(second_score - highest)
    total = first_weight + second_weight
    result = tl.div_rn(first_weight, total) * first + tl.div_rn(second_weight, total) * second
    tl.store(out + pair * width + column, result, mask=held)


@triton.jit
def keep_pairs_kernel(
    values,
    scores,
    ring,
    kept,
    kept_rows,
    width,
    rows_per_block,
    block_stride,
    row_stride,
    tile: tl.constexpr,
):
    number = tl.program_id(0)
    column = tl.arange(0, tile)
    held = column < width
    token = tl.load(kept + number)
    row = tl.load(kept_rows + number)
    target = row_address(ring, row, rows_per_block, block_stride, row_stride) + column
    value = tl.load(values + token * width + column, mask=held, other=0.0)
    score = tl.load(scores + token * width + column, mask=held, other=0.0)
    tl.store(target, value, mask=held)
    tl.store(target + width, score, mask=held)


def pool_pairs(
    values: Tensor,
    scores: Tensor,
    ring: Tensor,
    closing: Tensor,
    partner_rows: Tensor,
    kept: Tensor,
    kept_rows: Tensor,
) -> Tensor:
    """Pool each closing token with the one before it: float32 ``[n, width]``."""
    out = caches._pool_fake(values, scores, ring, closing, partner_rows, kept, kept_rows)
    width = values.shape[1]
    values, scores = values.contiguous(), scores.contiguous()
    # Rows and blocks of a ring are whole float32 numbers: its records are.
    plain = ring.view(torch.float32)
    options = {"tile": triton.next_power_of_2(width), "num_warps": 4, "enable_fp_fusion": False}
    # The ring is read before it is written: kernels of one stream run in order.
    if len(closing):
        pool_pairs_kernel[len(closing),](
            values, scores, plain, closing.contiguous(), partner_rows.contiguous(), out, width,
            *cache_strides(plain), **options,
        )  # fmt: skip
    if len(kept):
        keep_pairs_kernel[len(kept),](
            values, scores, plain, kept.contiguous(), kept_rows.contiguous(), width,
            *cache_strides(plain), **options,
        )  # fmt: skip
    return out
