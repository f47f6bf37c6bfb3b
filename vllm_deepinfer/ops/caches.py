"""Rows of the caches, as operations: rotate, quantise and store; load; pool pairs of tokens.

A cache is uint8 ``[blocks, rows_per_block, bytes]``, contiguous within a row; its row ``block *
rows_per_block + offset`` is a record of some ``RecordKind``.
Source: V4.1 specification, sections 2.5 to 2.7 and 5.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vllm_deepinfer.ops import reference
from vllm_deepinfer.ops.library import cpu_kernels, define, refuse, require
from vllm_deepinfer.ops.linear import check_output_dtype
from vllm_deepinfer.ops.norm import LANES
from vllm_deepinfer.ops.quantise import ROW_DTYPES
from vllm_deepinfer.ops.records import PlainRecord, RecordKind, record_of
from vllm_deepinfer.ops.rotation import check_turns

WIDTH_MULTIPLE = 32
_INT64 = (torch.int64,)


def check_cache(name: str, argument: str, cache: Tensor, kind: int, width: int) -> None:
    """Refuse a cache whose rows are not records of ``kind`` and ``width``."""
    if kind not in _KINDS:
        raise refuse(name, f"{argument}'s kind", kind, f"{', '.join(map(repr, RecordKind))}")
    if not 0 < width or width % WIDTH_MULTIPLE:
        raise refuse(name, f"{argument}'s width", width, f"multiples of {WIDTH_MULTIPLE}")
    num_bytes = _num_bytes(kind, width)
    if (
        cache.dtype != torch.uint8
        or cache.dim() != 3
        or cache.shape[2] != num_bytes
        or cache.stride(2) != 1
    ):
        allowed = f"uint8 [blocks, rows_per_block, {num_bytes}], contiguous rows"
        raise refuse(name, argument, cache, allowed)


_KINDS = frozenset(map(int, RecordKind))
_SIZES: dict[tuple[int, int], int] = {}


def _num_bytes(kind: int, width: int) -> int:
    size = _SIZES.get((kind, width))
    if size is None:
        size = _SIZES[kind, width] = record_of(kind, width).num_bytes
    return size


def check_row_numbers(
    name: str, argument: str, rows: Tensor, shape: tuple[int | str, ...], contiguous: bool = False
) -> None:
    """Refuse anything but int64 of that shape (see ``require``)."""
    require(name, argument, rows, _INT64, shape, contiguous=contiguous)


def cache_arguments(cache: Tensor, kind: int, width: int) -> tuple[int, ...]:
    """A cache as the kernels are told of it."""
    blocks, rows, _ = cache.shape
    block_stride, row_stride, _ = cache.stride()
    return cache.data_ptr(), kind, width, blocks, rows, block_stride, row_stride


# -- store ----------------------------------------------------------------------------------------


def _check_store(
    cache: Tensor,
    rows: Tensor,
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    kind: int,
    dtype: torch.dtype,
) -> None:
    name = "store_rotated"
    if x.dtype not in ROW_DTYPES or x.dim() != 2:
        raise refuse(name, "x", x, "bfloat16 or float32 [n, width]")
    count, width = x.shape
    check_cache(name, "cache", cache, kind, width)
    check_row_numbers(name, "rows", rows, (count,))
    check_turns(name, cos, sin, count, width)
    check_output_dtype(name, dtype)


def _store_reference(cache, rows, x, cos, sin, kind, dtype):
    _check_store(cache, rows, x, cos, sin, kind, dtype)
    kept = (rows >= 0).nonzero().squeeze(1)
    rotated = reference.rotate_pairs(x[kept], cos[kept], sin[kept], 2 * cos.shape[1]).to(dtype)
    reference.store_rows(cache, rows[kept], rotated, record_of(kind, x.shape[1]))


def _store_fake(cache, rows, x, cos, sin, kind, dtype):
    _check_store(cache, rows, x, cos, sin, kind, dtype)


def _store_cpu(cache, rows, x, cos, sin, kind, dtype):
    if kind == RecordKind.FLOAT32:
        _store_reference(cache, rows, x, cos, sin, kind, dtype)
        return
    _check_store(cache, rows, x, cos, sin, kind, dtype)
    x, rows = x.contiguous(), rows.contiguous()
    cpu_kernels().store_rotated(
        *cache_arguments(cache, kind, x.shape[1]),
        rows.data_ptr(),
        x.shape[0],
        x.data_ptr(),
        x.dtype == torch.bfloat16,
        cos.data_ptr(),
        sin.data_ptr(),
        cos.shape[1],
        dtype == torch.bfloat16,
        torch.get_num_threads(),
    )


store_rotated = define(
    "store_rotated(Tensor(a!) cache, Tensor rows, Tensor x, Tensor cos, Tensor sin, int kind, "
    "ScalarType dtype) -> ()",
    _store_reference,
    _store_fake,
    _store_cpu,
)
"""Rotate ``x`` ``[n, width]``, round it to ``dtype`` and store it as records in cache rows ``[n]``.

Rows are int64, different from each other; nothing is stored where they are negative. ``cos`` and
``sin`` are float32 ``[n, pairs]`` (see ``rotate``).
"""


# -- load -----------------------------------------------------------------------------------------


def _check_load(cache: Tensor, rows: Tensor, kind: int, width: int) -> None:
    check_cache("load_rows", "cache", cache, kind, width)
    if rows.dtype != torch.int64:
        raise refuse("load_rows", "rows", rows, "int64 [...]")


def _load_reference(cache, rows, kind, width):
    _check_load(cache, rows, kind, width)
    values = reference.load_rows(cache, rows, record_of(kind, width))
    return values.masked_fill_(rows.unsqueeze(-1) < 0, 0.0)


def _load_fake(cache, rows, kind, width):
    _check_load(cache, rows, kind, width)
    return cache.new_empty(*rows.shape, width, dtype=torch.float32)


def _load_cpu(cache, rows, kind, width):
    if kind == RecordKind.FLOAT32:
        return _load_reference(cache, rows, kind, width)
    out = _load_fake(cache, rows, kind, width)
    rows = rows.contiguous()
    cpu_kernels().load_rows(
        *cache_arguments(cache, kind, width),
        rows.data_ptr(),
        rows.numel(),
        out.data_ptr(),
        torch.get_num_threads(),
    )
    return out


load_rows = define(
    "load_rows(Tensor cache, Tensor rows, int kind, int width) -> Tensor",
    _load_reference,
    _load_fake,
    _load_cpu,
)
"""Float32 ``[..., width]`` of cache rows ``[...]``, int64; zeros where they are negative."""


# -- pairs of tokens ------------------------------------------------------------------------------


def _check_pool(
    values: Tensor,
    scores: Tensor,
    ring: Tensor,
    closing: Tensor,
    partner_rows: Tensor,
    kept: Tensor,
    kept_rows: Tensor,
) -> None:
    name = "pool_pairs"
    width = values.shape[-1]
    for argument, state in (("values", values), ("scores", scores)):
        if state.dtype != torch.float32 or state.dim() != 2 or state.shape != values.shape:
            raise refuse(name, argument, state, "float32 [T, width], both alike")
    if width % LANES:
        raise refuse(name, "values", values, f"[T, width], width a multiple of {LANES}")
    check_cache(name, "ring", ring, RecordKind.FLOAT32, 2 * width)
    check_row_numbers(name, "closing", closing, ("n",), True)
    check_row_numbers(name, "partner_rows", partner_rows, (closing.shape[0],), True)
    check_row_numbers(name, "kept", kept, ("m",), True)
    check_row_numbers(name, "kept_rows", kept_rows, (kept.shape[0],), True)


def _pool_reference(values, scores, ring, closing, partner_rows, kept, kept_rows):
    _check_pool(values, scores, ring, closing, partner_rows, kept, kept_rows)
    record = PlainRecord(2 * values.shape[1], torch.float32)
    state = torch.cat([values, scores], -1)
    partner = state[(closing - 1).clamp_min(0)]
    earlier = (partner_rows >= 0).nonzero().squeeze(1)
    if earlier.numel():
        partner[earlier] = reference.load_rows(ring, partner_rows[earlier], record)
    reference.store_rows(ring, kept_rows, state[kept], record)
    pair_values, pair_scores = torch.stack([partner, state[closing]], 1).chunk(2, -1)
    return (torch.softmax(pair_scores, 1) * pair_values).sum(1)


def _pool_fake(values, scores, ring, closing, partner_rows, kept, kept_rows):
    _check_pool(values, scores, ring, closing, partner_rows, kept, kept_rows)
    return values.new_empty(closing.shape[0], values.shape[1])


def _pool_cpu(values, scores, ring, closing, partner_rows, kept, kept_rows):
    out = _pool_fake(values, scores, ring, closing, partner_rows, kept, kept_rows)
    values, scores = values.contiguous(), scores.contiguous()
    cpu_kernels().pool_pairs(
        values.data_ptr(),
        scores.data_ptr(),
        values.shape[0],
        values.shape[1],
        ring.data_ptr(),
        *ring.shape[:2],
        *ring.stride()[:2],
        closing.data_ptr(),
        partner_rows.data_ptr(),
        closing.shape[0],
        kept.data_ptr(),
        kept_rows.data_ptr(),
        kept.shape[0],
        out.data_ptr(),
    )
    return out


pool_pairs = define(
    "pool_pairs(Tensor values, Tensor scores, Tensor(a!) ring, Tensor closing, "
    "Tensor partner_rows, Tensor kept, Tensor kept_rows) -> Tensor",
    _pool_reference,
    _pool_fake,
    _pool_cpu,
)
"""Pool each closing token with the one before it: float32 ``[n, width]`` (section 2.7).

Values are weighted, per column, by the softmax over the pair's scores. The ring is read first and
written afterwards.

Args:
    values, scores: float32 ``[T, width]`` of this step's tokens.
    ring: cache of plain float32 rows, values followed by scores, of earlier tokens.
    closing: int64 ``[n]`` tokens that complete a pair.
    partner_rows: int64 ``[n]`` ring row of the token before each; negative where it is the token
        before in this step.
    kept, kept_rows: int64 ``[m]`` tokens written to the ring, and the rows they go to.
"""
