"""Attention over cache rows, as an operation (section 2.6 of the V4.1 specification)."""

from __future__ import annotations

import torch
from torch import Tensor

from vllm_deepinfer.ops import reference
from vllm_deepinfer.ops.caches import cache_arguments, check_cache, check_row_numbers
from vllm_deepinfer.ops.library import OperationError, cpu_kernels, define, refuse
from vllm_deepinfer.ops.linear import check_output_dtype
from vllm_deepinfer.ops.quantise import ROW_DTYPES
from vllm_deepinfer.ops.records import Record, RecordKind, record_of

NAME = "sink_attention"
TOKENS_AT_ONCE = 128
"""Queries whose gathered keys the reference holds in memory together."""


def _check(
    query: Tensor,
    sink: Tensor,
    window: Tensor,
    window_rows: Tensor,
    window_kind: int,
    selected: Tensor | None,
    selected_rows: Tensor | None,
    selected_kind: int,
    dtype: torch.dtype,
) -> None:
    if query.dtype not in ROW_DTYPES or query.dim() != 3:
        raise refuse(NAME, "query", query, "bfloat16 or float32 [T, H, width]")
    tokens, heads, width = query.shape
    if sink.dtype != torch.float32 or sink.shape != (heads,):
        raise refuse(NAME, "sink", sink, f"float32 [{heads}]")
    check_cache(NAME, "window", window, window_kind, width)
    check_row_numbers(NAME, "window_rows", window_rows, (tokens, "W"))
    if (selected is None) != (selected_rows is None):
        raise OperationError(f"{NAME}: selected and selected_rows are given together or not.")
    if selected is not None:
        check_cache(NAME, "selected", selected, selected_kind, width)
        check_row_numbers(NAME, "selected_rows", selected_rows, (tokens, "K"))
    check_output_dtype(NAME, dtype)


def visible_keys(
    cache: Tensor, rows: Tensor, record: Record, repeated: bool = False
) -> reference.Keys:
    """Keys of cache rows ``[T, K]``; zero where there is none, as a weight of zero makes no NaN of
    some other row zero. ``repeated`` as for ``reference.load_rows``."""
    visible = rows >= 0
    values = reference.load_rows(cache, rows, record, repeated)
    return reference.Keys(values.masked_fill_(~visible.unsqueeze(-1), 0.0), visible)


def _reference(
    query,
    sink,
    scale,
    dtype,
    window,
    window_rows,
    window_kind,
    selected=None,
    selected_rows=None,
    selected_kind=0,
    repeated=True,
):
    """``repeated``: as for ``reference.load_rows``, which then waits for a device."""
    _check(
        query, sink, window, window_rows, window_kind, selected, selected_rows, selected_kind, dtype
    )
    width = query.shape[-1]
    sets = [(window, window_rows, record_of(window_kind, width))]
    if selected is not None and selected_rows.shape[1]:
        sets.append((selected, selected_rows, record_of(selected_kind, width)))
    parts = []
    for start in range(0, query.shape[0], TOKENS_AT_ONCE):
        part = slice(start, start + TOKENS_AT_ONCE)
        keys = [visible_keys(cache, rows[part], record, repeated) for cache, rows, record in sets]
        parts.append(reference.sink_attention(query[part], keys, sink, scale).to(dtype))
    return torch.cat(parts) if parts else query.to(dtype)


def _fake(
    query,
    sink,
    scale,
    dtype,
    window,
    window_rows,
    window_kind,
    selected=None,
    selected_rows=None,
    selected_kind=0,
):
    _check(
        query, sink, window, window_rows, window_kind, selected, selected_rows, selected_kind, dtype
    )
    return query.new_empty(query.shape, dtype=dtype)


def _cpu(
    query,
    sink,
    scale,
    dtype,
    window,
    window_rows,
    window_kind,
    selected=None,
    selected_rows=None,
    selected_kind=0,
):
    arguments = (
        query, sink, scale, dtype, window, window_rows, window_kind, selected, selected_rows,
        selected_kind,
    )  # fmt: skip
    if window_kind == RecordKind.FLOAT32:
        return _reference(*arguments)
    out = _fake(*arguments)
    query, window_rows = query.contiguous(), window_rows.contiguous()
    width = query.shape[2]
    chosen = (0, 0, width, 1, 1, 0, 0, 0, 0)
    if selected is not None and selected_rows.shape[1]:
        selected_rows = selected_rows.contiguous()
        cache = cache_arguments(selected, selected_kind, width)
        chosen = (*cache, selected_rows.data_ptr(), selected_rows.shape[1])
    cpu_kernels().sink_attention(
        query.data_ptr(),
        query.dtype == torch.bfloat16,
        *query.shape,
        sink.data_ptr(),
        scale,
        *cache_arguments(window, window_kind, width),
        window_rows.data_ptr(),
        window_rows.shape[1],
        *chosen,
        out.data_ptr(),
        dtype == torch.bfloat16,
        torch.get_num_threads(),
    )
    return out


sink_attention = define(
    "sink_attention(Tensor query, Tensor sink, float scale, ScalarType dtype, Tensor window, "
    "Tensor window_rows, int window_kind, Tensor? selected=None, Tensor? selected_rows=None, "
    "int selected_kind=0) -> Tensor",
    _reference,
    _fake,
    _cpu,
)
"""Attention ``[T, H, width]`` of queries over each token's own cache rows, which are values too.

All heads share the keys. Rows are read as they are stored; the sum over a token's keys depends on
nothing but those keys, in their order.

Args:
    query: bfloat16 or float32 ``[T, H, width]``.
    sink: float32 ``[H]``, joins the denominator only.
    dtype: bfloat16 or float32, to which the result is rounded.
    window, window_rows, window_kind: a cache of records of that ``RecordKind``, and its int64 rows
        ``[T, W]``, negative where there is none. Every token has at least one key.
    selected, selected_rows, selected_kind: further keys, likewise.
"""
