"""Attention of each token over rows of up to two caches, read as they are stored."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from vllm_deepinfer.ops import attention
from vllm_deepinfer.ops.triton.records import (
    RECORDS,
    cache_strides,
    decode_rows,
    row_address,
)

# One tile for every number of tokens, so a token's result never depends on the others. With more
# heads in a program the compiler spills; each program decodes its token's keys for itself.
TILE = {"tile_heads": 16, "tile_keys": 32, "num_warps": 8, "num_stages": 1}


@triton.jit
def _weigh(scores, highest, denominator):
    """Softmax weights under the new maximum, and what older sums shrink by."""
    raised = tl.maximum(highest, tl.max(scores, axis=1))
    # Until a key is visible the maximum is minus infinity, from which nothing can be taken.
    base = tl.where(raised == float("-inf"), 0.0, raised)
    weights = tl.exp(scores - base[:, None])
    shrink = tl.exp(highest - base)
    return weights, shrink, raised, denominator * shrink + tl.sum(weights, axis=1)


@triton.jit
def _split(weights):
    """Three bfloat16 numbers whose sum is a float32 weight: values are exact in bfloat16, weights
    are not, and products of the two shall be."""
    coarse = weights.to(tl.bfloat16)
    rest = weights - coarse.to(tl.float32)
    middle = rest.to(tl.bfloat16)
    return coarse, middle, (rest - middle.to(tl.float32)).to(tl.bfloat16)


@triton.jit
def _add(total, shrink, coarse, middle, fine, keys):
    total = tl.dot(fine, keys, total * shrink[:, None])
    return tl.dot(coarse, keys, tl.dot(middle, keys, total))


@triton.jit
def _attend_rows(
    q0,
    q1,
    q2,
    q3,
    highest,
    denominator,
    o0,
    o1,
    o2,
    o3,
    cache,
    rows,
    per_token,
    rows_per_block,
    block_stride,
    row_stride,
    scale,
    record: tl.constexpr,
    width: tl.constexpr,
    tile_keys: tl.constexpr,
):
    """One set of keys, ``tile_keys`` at a time: the online softmax of flash attention.

    Queries, keys and outputs are taken in quarters of their columns: whole rows do not fit
    registers.
    """
    part: tl.constexpr = width // 4
    for start in range(0, per_token, tile_keys):
        number = start + tl.arange(0, tile_keys)
        row = tl.load(rows + number, mask=number < per_token, other=-1)
        visible = row >= 0
        address = row_address(cache, row, rows_per_block, block_stride, row_stride)
        k0 = decode_rows(address, visible, record, width, 0, part).to(tl.bfloat16)
        scores = tl.dot(q0, tl.trans(k0))
        k1 = decode_rows(address, visible, record, width, part, part).to(tl.bfloat16)
        scores = tl.dot(q1, tl.trans(k1), scores)
        k2 = decode_rows(address, visible, record, width, 2 * part, part).to(tl.bfloat16)
        scores = tl.dot(q2, tl.trans(k2), scores)
        k3 = decode_rows(address, visible, record, width, 3 * part, part).to(tl.bfloat16)
        scores = tl.dot(q3, tl.trans(k3), scores)
        scores = tl.where(visible[None, :], scores * scale, float("-inf"))
        weights, shrink, highest, denominator = _weigh(scores, highest, denominator)
        coarse, middle, fine = _split(weights)
        o0 = _add(o0, shrink, coarse, middle, fine, k0)
        o1 = _add(o1, shrink, coarse, middle, fine, k1)
        o2 = _add(o2, shrink, coarse, middle, fine, k2)
        o3 = _add(o3, shrink, coarse, middle, fine, k3)
    return highest, denominator, o0, o1, o2, o3


@triton.jit
def _store_part(out, position, held, total, denominator):
    shape: tl.constexpr = total.shape
    share = tl.div_rn(total, tl.broadcast_to(denominator[:, None], shape))
    tl.store(out + position, share.to(out.dtype.element_ty), mask=held[:, None])


@triton.jit
def sink_attention_kernel(
    query,
    sink,
    out,
    heads,
    scale,
    window,
    window_rows,
    window_per_token,
    window_rows_per_block,
    window_block_stride,
    window_row_stride,
    selected,
    selected_rows,
    selected_per_token,
    selected_rows_per_block,
    selected_block_stride,
    selected_row_stride,
    window_record: tl.constexpr,
    selected_record: tl.constexpr,
    width: tl.constexpr,
    tile_heads: tl.constexpr,
    tile_keys: tl.constexpr,
):
    part: tl.constexpr = width // 4
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * tile_heads + tl.arange(0, tile_heads)
    held = head < heads
    position = (token * heads + head)[:, None] * width + tl.arange(0, part)[None, :]
    rows = query + position
    q0 = tl.load(rows, mask=held[:, None], other=0.0).to(tl.bfloat16)
    q1 = tl.load(rows + part, mask=held[:, None], other=0.0).to(tl.bfloat16)
    q2 = tl.load(rows + 2 * part, mask=held[:, None], other=0.0).to(tl.bfloat16)
    q3 = tl.load(rows + 3 * part, mask=held[:, None], other=0.0).to(tl.bfloat16)
    highest = tl.full((tile_heads,), float("-inf"), tl.float32)
    denominator = tl.zeros((tile_heads,), tl.float32)
    o0 = tl.zeros((tile_heads, part), tl.float32)
    o1 = tl.zeros((tile_heads, part), tl.float32)
    o2 = tl.zeros((tile_heads, part), tl.float32)
    o3 = tl.zeros((tile_heads, part), tl.float32)
    highest, denominator, o0, o1, o2, o3 = _attend_rows(
        q0, q1, q2, q3, highest, denominator, o0, o1, o2, o3, window,
        window_rows + token * window_per_token, window_per_token, window_rows_per_block,
        window_block_stride, window_row_stride, scale, window_record, width, tile_keys,
    )  # fmt: skip
    if selected_record is not None:
        highest, denominator, o0, o1, o2, o3 = _attend_rows(
            q0, q1, q2, q3, highest, denominator, o0, o1, o2, o3, selected,
            selected_rows + token * selected_per_token, selected_per_token,
            selected_rows_per_block, selected_block_stride, selected_row_stride, scale,
            selected_record, width, tile_keys,
        )  # fmt: skip
    # The sink joins the denominator only: the maximum is over keys.
    denominator += tl.exp(tl.load(sink + head, mask=held, other=0.0) - highest)
    _store_part(out, position, held, o0, denominator)
    _store_part(out, position + part, held, o1, denominator)
    _store_part(out, position + 2 * part, held, o2, denominator)
    _store_part(out, position + 3 * part, held, o3, denominator)


def sink_attention(
    query: Tensor,
    sink: Tensor,
    scale: float,
    dtype: torch.dtype,
    window: Tensor,
    window_rows: Tensor,
    window_kind: int,
    selected: Tensor | None = None,
    selected_rows: Tensor | None = None,
    selected_kind: int = 0,
) -> Tensor:
    """Attention ``[T, H, width]`` of queries over each token's own cache rows."""
    arguments = (
        query, sink, scale, dtype, window, window_rows, window_kind, selected, selected_rows,
        selected_kind,
    )  # fmt: skip
    # Only bfloat16 queries are multiplied as they are; float32 ones belong to the debug mode.
    known = window_kind in RECORDS and (selected is None or selected_kind in RECORDS)
    if not known or query.dtype != torch.bfloat16:
        return attention._reference(*arguments)
    out = attention._fake(*arguments)
    tokens, heads, width = query.shape
    if not out.numel():
        return out
    other, other_record = (None, None, 0, 1, 0, 0), None
    if selected is not None and selected_rows is not None and selected_rows.shape[1]:
        other, other_record = _key_set(selected, selected_rows), RECORDS[selected_kind]
    sink_attention_kernel[tokens, triton.cdiv(heads, TILE["tile_heads"])](
        query.contiguous(), sink, out, heads, scale, *_key_set(window, window_rows), *other,
        window_record=RECORDS[window_kind], selected_record=other_record, width=width,
        enable_fp_fusion=False, **TILE,
    )  # fmt: skip
    return out


def _key_set(cache: Tensor, rows: Tensor) -> tuple:
    return cache, rows.contiguous(), rows.shape[1], *cache_strides(cache)
