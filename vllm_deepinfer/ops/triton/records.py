"""Cache rows inside kernels: the records of ``ops/records.py``, values followed by scales.

A row is handled as its even and its odd columns, which is what packed FP4 holds in a byte and what
a rotation turns into each other.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from vllm_deepinfer.ops.records import RecordKind
from vllm_deepinfer.ops.triton.number_formats import (
    e2m1_values,
    fp4_fine_scale,
    fp4_scale_byte,
    fp8_scale_byte,
    group_magnitude,
    inverse_scale,
    scale_value,
    to_e2m1,
)

RECORDS = {RecordKind.FP8: "fp8", RecordKind.FP4: "fp4", RecordKind.FP4_FINE: "fp4_fine"}
"""Records the kernels know. Plain ones serve the unquantised debug mode, by the torch reference."""


def cache_strides(cache: Tensor) -> tuple[int, int, int]:
    """Rows in a block, bytes from block to block and from row to row, for ``row_address``."""
    return cache.shape[1], cache.stride(0), cache.stride(1)


@triton.jit
def row_address(cache, row, rows_per_block, block_stride, row_stride):
    """Pointers to the first byte of cache rows ``block * rows_per_block + offset``, int64."""
    return cache + row // rows_per_block * block_stride + row % rows_per_block * row_stride


@triton.jit
def encode_row(address, even, odd, record: tl.constexpr, width: tl.constexpr):
    """Store one row of float32 columns ``even`` and ``odd``, each ``[width / 2]``.

    ``record`` is "fp8", "fp4" or "fp4_fine"; ``width`` is a power of two.
    """
    half: tl.constexpr = 8 if record == "fp4_fine" else 16
    groups: tl.constexpr = width // (2 * half)
    even = tl.reshape(even, (groups, half))
    odd = tl.reshape(odd, (groups, half))
    magnitude = tl.maximum(group_magnitude(even), group_magnitude(odd))
    group = tl.arange(0, groups)
    pair = group[:, None] * half + tl.arange(0, half)[None, :]
    if record == "fp8":
        byte = fp8_scale_byte(magnitude)
        inverse = inverse_scale(byte)[:, None]
        first = (even * inverse).to(tl.float8e4nv).to(tl.uint8, bitcast=True)
        second = (odd * inverse).to(tl.float8e4nv).to(tl.uint8, bitcast=True)
        tl.store(address + 2 * pair, first)
        tl.store(address + 2 * pair + 1, second)
        tl.store(address + width + group, byte.to(tl.uint8))
    else:
        if record == "fp4":
            byte = fp4_scale_byte(magnitude)
            inverse = inverse_scale(byte)[:, None]
            low, high = to_e2m1(even * inverse), to_e2m1(odd * inverse)
            tl.store(address + width // 2 + group, byte.to(tl.uint8))
        else:
            scale = fp4_fine_scale(magnitude)
            divisor = tl.broadcast_to(scale.to(tl.float32)[:, None], (groups, half))
            low, high = to_e2m1(tl.div_rn(even, divisor)), to_e2m1(tl.div_rn(odd, divisor))
            tl.store(address + width // 2 + group, scale.to(tl.uint8, bitcast=True))
        tl.store(address + pair, (low | (high << 4)).to(tl.uint8))


@triton.jit
def decode_rows(
    address,
    held,
    record: tl.constexpr,
    width: tl.constexpr,
    first: tl.constexpr,
    columns: tl.constexpr,
):
    """Float32 ``[rows, columns]`` of cache rows at ``address`` ``[rows]``, from column ``first``.

    Zero where not ``held``. Every value is exact in bfloat16.
    """
    size: tl.constexpr = 16 if record == "fp4_fine" else 32
    values_bytes: tl.constexpr = width if record == "fp8" else width // 2
    rows: tl.constexpr = address.shape[0]
    groups: tl.constexpr = columns // size
    group = first // size + tl.arange(0, groups)
    stored = tl.load(address[:, None] + values_bytes + group[None, :], mask=held[:, None], other=0)
    if record == "fp4_fine":
        scale = stored.to(tl.float8e4nv, bitcast=True).to(tl.float32)
    else:
        scale = scale_value(stored)
    if record == "fp8":
        byte = first + tl.arange(0, columns)
        codes = tl.load(address[:, None] + byte[None, :], mask=held[:, None], other=0)
        values = codes.to(tl.float8e4nv, bitcast=True).to(tl.float32)
    else:
        byte = first // 2 + tl.arange(0, columns // 2)
        pair = tl.load(address[:, None] + byte[None, :], mask=held[:, None], other=0)
        values = tl.interleave(e2m1_values(pair & 15), e2m1_values(pair >> 4))
    scaled = tl.reshape(values, (rows, groups, size)) * scale[:, :, None]
    return tl.reshape(scaled, (rows, columns))
