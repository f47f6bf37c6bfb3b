"""Scores of index keys, one token and a tile of keys a program."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from vllm_deepinfer.ops import indexer
from vllm_deepinfer.ops.records import RecordKind
from vllm_deepinfer.ops.triton.number_formats import (
    e2m1_values,
    fp4_scale_byte,
    group_magnitude,
    inverse_scale,
    scale_value,
    to_e2m1,
)
from vllm_deepinfer.ops.triton.records import cache_strides, decode_rows, row_address

KEYS_PER_PROGRAM = 64


@triton.jit
def _as_stored(values):
    """What float32 ``[rows, width]`` reads as after the store of an FP4 record."""
    rows: tl.constexpr = values.shape[0]
    width: tl.constexpr = values.shape[1]
    grouped = tl.reshape(values, (rows, width // 32, 32))
    byte = fp4_scale_byte(group_magnitude(grouped))
    codes = to_e2m1(grouped * inverse_scale(byte)[:, :, None])
    return tl.reshape(e2m1_values(codes) * scale_value(byte)[:, :, None], (rows, width))


@triton.jit
def index_scores_kernel(
    query,
    weights,
    cache,
    block_table,
    requests,
    num_visible,
    out,
    heads,
    num_keys,
    table_stride,
    rows_per_block,
    block_stride,
    row_stride,
    width: tl.constexpr,
    rounded: tl.constexpr,
    tile_heads: tl.constexpr,
    tile_keys: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    key = tl.program_id(1) * tile_keys + tl.arange(0, tile_keys)
    inside = key < num_keys
    visible = inside & (key < tl.load(num_visible + token))
    target = out + token * num_keys + key
    if tl.max(visible.to(tl.int32), axis=0) == 0:
        tl.store(target, tl.full((tile_keys,), float("-inf"), tl.float32), mask=inside)
    else:
        head = tl.arange(0, tile_heads)
        position = (token * heads + head)[:, None] * width + tl.arange(0, width)[None, :]
        queries = tl.load(query + position, mask=(head < heads)[:, None], other=0.0)
        queries = _as_stored(queries.to(tl.float32)).to(tl.bfloat16)
        table = block_table + tl.load(requests + token) * table_stride
        block = tl.load(table + key // rows_per_block, mask=visible, other=0).to(tl.int64)
        row = block * rows_per_block + key % rows_per_block
        address = row_address(cache, row, rows_per_block, block_stride, row_stride)
        keys = decode_rows(address, visible, "fp4", width, 0, width).to(tl.bfloat16)
        dots = tl.dot(queries, tl.trans(keys))
        if rounded:
            dots = dots.to(tl.bfloat16).to(tl.float32)
        weight = tl.load(weights + token * heads + head, mask=head < heads, other=0.0)
        positive = tl.maximum(dots, 0.0, propagate_nan=tl.PropagateNan.ALL)
        products = positive * weight[:, None]
        if rounded:
            products = products.to(tl.bfloat16).to(tl.float32)
        # One head after the other: another order would round otherwise.
        total = tl.zeros((tile_keys,), tl.float32)
        for number in range(heads):
            total += tl.sum(tl.where((head == number)[:, None], products, 0.0), axis=0)
        if rounded:
            total = total.to(tl.bfloat16).to(tl.float32)
        tl.store(target, tl.where(visible, total, float("-inf")), mask=inside)


def index_scores(
    query: Tensor,
    weights: Tensor,
    cache: Tensor,
    kind: int,
    block_table: Tensor,
    requests: Tensor,
    num_visible: Tensor,
    num_keys: int,
    rounded: bool,
) -> Tensor:
    """Scores, float32 ``[T, num_keys]``, of the index keys of each token's request."""
    arguments = (
        query, weights, cache, kind, block_table, requests, num_visible, num_keys, rounded
    )  # fmt: skip
    if kind != RecordKind.FP4:  # plain keys serve the unquantised debug mode
        return indexer._scores_reference(*arguments)
    out = indexer._scores_fake(*arguments)
    if not out.numel():
        return out
    tokens, heads, width = query.shape
    block_table = block_table if block_table.stride(1) == 1 else block_table.contiguous()
    index_scores_kernel[tokens, triton.cdiv(num_keys, KEYS_PER_PROGRAM)](
        query.contiguous(), weights.contiguous(), cache, block_table, requests.contiguous(),
        num_visible.contiguous(), out, heads, num_keys, block_table.stride(0),
        *cache_strides(cache), width=width, rounded=rounded,
        tile_heads=max(triton.next_power_of_2(heads), 16), tile_keys=KEYS_PER_PROGRAM,
        num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip
    return out
