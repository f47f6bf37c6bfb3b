"""Engram, as operations: hashed n-grams, rows of a table, gated memory (section 3)."""

from __future__ import annotations

import torch
from torch import Tensor

from vllm_deepinfer.ops import reference_engram
from vllm_deepinfer.ops.caches import check_row_numbers
from vllm_deepinfer.ops.formats import FP8_GROUP
from vllm_deepinfer.ops.library import cpu_kernels, define, refuse, require
from vllm_deepinfer.ops.linear import E4M3, SCALE_DTYPES, check_output_dtype
from vllm_deepinfer.ops.quantise import ROW_DTYPES
from vllm_deepinfer.ops.streams import STREAMS, check_streams

# -- rows -----------------------------------------------------------------------------------------


def _check_rows(
    ngrams: Tensor,
    token_map: Tensor,
    multipliers: Tensor,
    primes: Tensor,
    offsets: Tensor,
) -> None:
    name = "engram_rows"
    check_row_numbers(name, "ngrams", ngrams, ("T", "n"))
    size, heads = ngrams.shape[1], primes.shape[-1]
    if size < 2:
        raise refuse(name, "ngrams", ngrams, "int64 [T, n], n at least 2")
    check_row_numbers(name, "token_map", token_map, ("tokens",), True)
    check_row_numbers(name, "multipliers", multipliers, (size,), True)
    check_row_numbers(name, "primes", primes, (size - 1, "heads"), True)
    check_row_numbers(name, "offsets", offsets, (size - 1, heads), True)


def _rows_reference(ngrams, token_map, pad_id, multipliers, primes, offsets):
    _check_rows(ngrams, token_map, multipliers, primes, offsets)
    return reference_engram.engram_rows(ngrams, token_map, pad_id, multipliers, primes, offsets)


def _rows_fake(ngrams, token_map, pad_id, multipliers, primes, offsets):
    _check_rows(ngrams, token_map, multipliers, primes, offsets)
    return ngrams.new_empty(ngrams.shape[0], primes.numel())


def _rows_cpu(ngrams, token_map, pad_id, multipliers, primes, offsets):
    out = _rows_fake(ngrams, token_map, pad_id, multipliers, primes, offsets)
    ngrams = ngrams.contiguous()
    cpu_kernels().engram_rows(
        ngrams.data_ptr(),
        *ngrams.shape,
        token_map.data_ptr(),
        token_map.shape[0],
        pad_id,
        multipliers.data_ptr(),
        primes.data_ptr(),
        offsets.data_ptr(),
        primes.shape[1],
        out.data_ptr(),
    )
    return out


engram_rows = define(
    "engram_rows(Tensor ngrams, Tensor token_map, int pad_id, Tensor multipliers, Tensor primes, "
    "Tensor offsets) -> Tensor",
    _rows_reference,
    _rows_fake,
    _rows_cpu,
)
"""Table rows, int64 ``[T, (n - 1) * heads]``, of tokens with their predecessors ``[T, n]``.

A token before the start of the request or outside the map blocks itself and everything older.

Args:
    ngrams: int64 ``[T, n]``, newest first, negative before the start.
    token_map: int64 ``[tokens]``, compressed id of each token id.
    pad_id: compressed id of blocked tokens.
    multipliers: int64 ``[n]``.
    primes, offsets: int64 ``[n - 1, heads]``, rows of each table and where it starts.
"""


# -- table ----------------------------------------------------------------------------------------


def _check_table(name: str, weight: Tensor, scale: Tensor, rows: Tensor) -> None:
    if (
        weight.dtype != E4M3
        or weight.dim() != 2
        or weight.shape[1] % FP8_GROUP
        or not weight.is_contiguous()
    ):
        raise refuse(
            name, "weight", weight, "float8_e4m3fn [rows, n], contiguous, n a multiple of 32"
        )
    shape = (weight.shape[0], weight.shape[1] // FP8_GROUP)
    require(name, "scale", scale, SCALE_DTYPES, shape, contiguous=True)
    check_row_numbers(name, "rows", rows, ("T", "columns"))


def _check_load(weight: Tensor, scale: Tensor, rows: Tensor, dtype: torch.dtype) -> None:
    _check_table("load_table_rows", weight, scale, rows)
    check_output_dtype("load_table_rows", dtype)


def _table_reference(weight, scale, rows, dtype):
    _check_load(weight, scale, rows, dtype)
    return reference_engram.load_table_rows(weight, scale, rows, dtype)


def _table_fake(weight, scale, rows, dtype):
    _check_load(weight, scale, rows, dtype)
    return rows.new_empty(rows.shape[0], rows.shape[1] * weight.shape[1], dtype=dtype)


def _table_cpu(weight, scale, rows, dtype):
    out = _table_fake(weight, scale, rows, dtype)
    rows = rows.contiguous()
    cpu_kernels().load_table_rows(
        weight.data_ptr(),
        scale.data_ptr(),
        *weight.shape,
        rows.data_ptr(),
        rows.numel(),
        out.data_ptr(),
        dtype == torch.bfloat16,
        torch.get_num_threads(),
    )
    return out


load_table_rows = define(
    "load_table_rows(Tensor weight, Tensor scale, Tensor rows, ScalarType dtype) -> Tensor",
    _table_reference,
    _table_fake,
    _table_cpu,
)
"""Rows ``[T, columns]``, int64, of an e4m3 table ``[rows, n]`` with a UE8M0 scale per 32 columns,
side by side: ``[T, columns * n]``, rounded to ``dtype``.
"""


def take_held_rows(
    weight: Tensor, scale: Tensor, rows: Tensor, first: int
) -> tuple[Tensor, Tensor]:
    """Bytes of a table's rows, as far as this part of the table has them.

    Args:
        weight: e4m3 ``[held, n]``, rows ``first`` to ``first + held`` of the table; may be none.
        scale: UE8M0 ``[held, n / 32]``.
        rows: int64 ``[T, columns]``, numbers in the whole table.

    Returns:
        Codes ``[T, columns * n]`` and scales ``[T, columns * n / 32]``, uint8; all bytes of a row
        that is elsewhere are zero.
    """
    _check_table("take_held_rows", weight, scale, rows)
    numbers = rows.flatten() - first
    is_held = (numbers >= 0) & (numbers < len(weight))
    numbers = numbers.masked_fill(~is_held, 0)  # any row here: it is multiplied by zero
    parts = []
    for part in (weight, scale):
        if len(part):
            taken = part.view(torch.uint8).index_select(0, numbers).mul_(is_held.unsqueeze(1))
        else:
            taken = rows.new_zeros(len(numbers), part.shape[1], dtype=torch.uint8)
        parts.append(taken.view(len(rows), rows.shape[1] * part.shape[1]))
    return parts[0], parts[1]


# -- memory ---------------------------------------------------------------------------------------


def _check_memory(streams: Tensor, memory: Tensor, query_weight: Tensor, key_weight: Tensor):
    name = "add_memory"
    tokens, columns = check_streams(name, streams)
    require(name, "memory", memory, ROW_DTYPES, (tokens, (STREAMS + 1) * columns))
    for argument, weight in (("query_weight", query_weight), ("key_weight", key_weight)):
        require(name, argument, weight, (torch.bfloat16,), (STREAMS, columns), contiguous=True)


def _memory_reference(streams, memory, query_weight, key_weight, eps):
    _check_memory(streams, memory, query_weight, key_weight)
    return reference_engram.add_memory(streams, memory, query_weight, key_weight, eps)


def _memory_fake(streams, memory, query_weight, key_weight, eps):
    _check_memory(streams, memory, query_weight, key_weight)
    return torch.empty_like(streams)


def _memory_cpu(streams, memory, query_weight, key_weight, eps):
    out = _memory_fake(streams, memory, query_weight, key_weight, eps)
    memory = memory.contiguous()
    cpu_kernels().add_memory(
        streams.data_ptr(),
        streams.dtype == torch.bfloat16,
        memory.data_ptr(),
        memory.dtype == torch.bfloat16,
        query_weight.data_ptr(),
        key_weight.data_ptr(),
        streams.shape[0],
        streams.shape[2],
        eps,
        out.data_ptr(),
        torch.get_num_threads(),
    )
    return out


add_memory = define(
    "add_memory(Tensor streams, Tensor memory, Tensor query_weight, Tensor key_weight, float eps) "
    "-> Tensor",
    _memory_reference,
    _memory_fake,
    _memory_cpu,
)
"""Streams ``[T, S, D]`` plus memory, gated per stream by how well its key meets the stream.

Args:
    memory: ``[T, (S + 1) * D]``, the streams' keys followed by the value they share.
    query_weight, key_weight: bfloat16 ``[S, D]``.
"""
