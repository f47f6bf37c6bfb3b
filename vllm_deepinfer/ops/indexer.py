"""The indexer, as operations: scores, candidate blocks, and the rows chosen (section 2.8).

Nothing depends on how many tokens or rows come along.

The rule of every choice, here and in the router: the highest are chosen, and among equal ones those
of the lowest number. Zeros are equal whatever their sign. NaN is above all numbers, as in
``torch.topk``: finite input gives none, and one that comes of a fault shows in the result. Rows and
blocks at minus infinity, and only those, are never chosen.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vllm_deepinfer.ops import reference
from vllm_deepinfer.ops.caches import cache_arguments, check_cache, check_row_numbers
from vllm_deepinfer.ops.library import cpu_kernels, define, refuse, require
from vllm_deepinfer.ops.quantise import ROW_DTYPES
from vllm_deepinfer.ops.records import RecordKind, record_of

NEGATIVE_INFINITY = float("-inf")
_KERNEL_KINDS = (RecordKind.FP4, RecordKind.BFLOAT16)

# -- scores ---------------------------------------------------------------------------------------


def _check_scores(
    query: Tensor,
    weights: Tensor,
    cache: Tensor,
    kind: int,
    block_table: Tensor,
    requests: Tensor,
    num_visible: Tensor,
    num_keys: int,
) -> None:
    name = "index_scores"
    if query.dtype not in ROW_DTYPES or query.dim() != 3:
        raise refuse(name, "query", query, "bfloat16 or float32 [T, H, width]")
    tokens, heads, width = query.shape
    require(name, "weights", weights, (torch.float32,), (tokens, heads))
    check_cache(name, "cache", cache, kind, width)
    if block_table.dtype != torch.int32 or block_table.dim() != 2 or block_table.stride(1) != 1:
        raise refuse(name, "block_table", block_table, "int32 [R, columns], contiguous rows")
    check_row_numbers(name, "requests", requests, (tokens,))
    check_row_numbers(name, "num_visible", num_visible, (tokens,))
    most = block_table.shape[1] * cache.shape[1]
    if not 0 <= num_keys <= most:
        raise refuse(name, "num_keys", num_keys, f"0 to {most}, the rows of the block table")


def _scores_reference(
    query, weights, cache, kind, block_table, requests, num_visible, num_keys, rounded
):
    _check_scores(query, weights, cache, kind, block_table, requests, num_visible, num_keys)
    record = record_of(kind, query.shape[-1])
    query = record.decode(record.encode(query))
    rows = torch.arange(num_keys, device=query.device)
    table = block_table.long()[:, rows // cache.shape[1]]
    located = table * cache.shape[1] + rows % cache.shape[1]
    scores = query.new_empty(len(query), num_keys)
    for request in requests.unique().tolist():
        tokens = (requests == request).nonzero().squeeze(1)
        keys = reference.load_rows(cache, located[request], record)
        visible = rows < num_visible[tokens].unsqueeze(1)
        scores[tokens] = reference.index_scores(
            query[tokens], weights[tokens], keys, visible, rounded
        )
    return scores


def _scores_fake(
    query, weights, cache, kind, block_table, requests, num_visible, num_keys, rounded
):
    _check_scores(query, weights, cache, kind, block_table, requests, num_visible, num_keys)
    return weights.new_empty(query.shape[0], num_keys)


def _scores_cpu(query, weights, cache, kind, block_table, requests, num_visible, num_keys, rounded):
    arguments = (
        query, weights, cache, kind, block_table, requests, num_visible, num_keys, rounded
    )  # fmt: skip
    if kind not in _KERNEL_KINDS:
        return _scores_reference(*arguments)
    out = _scores_fake(*arguments)
    query, weights = query.contiguous(), weights.contiguous()
    requests, num_visible = requests.contiguous(), num_visible.contiguous()
    cpu_kernels().index_scores(
        query.data_ptr(),
        query.dtype == torch.bfloat16,
        weights.data_ptr(),
        query.shape[0],
        query.shape[1],
        *cache_arguments(cache, kind, query.shape[2]),
        block_table.data_ptr(),
        block_table.stride(0),
        block_table.shape[1],
        requests.data_ptr(),
        num_visible.data_ptr(),
        rounded,
        out.data_ptr(),
        num_keys,
        torch.get_num_threads(),
    )
    return out


index_scores = define(
    "index_scores(Tensor query, Tensor weights, Tensor cache, int kind, Tensor block_table, "
    "Tensor requests, Tensor num_visible, int num_keys, bool rounded) -> Tensor",
    _scores_reference,
    _scores_fake,
    _scores_cpu,
)
"""Scores, float32 ``[T, num_keys]``, of the index keys of each token's request.

Every rounding point is the published reference's, which makes scores equal to its own.

Args:
    query: bfloat16 or float32 ``[T, H, width]``, brought to the precision of the keys first.
    weights: float32 ``[T, H]``.
    cache, kind: index keys, records of that ``RecordKind``.
    block_table: int32 ``[R, columns]``, cache blocks of each request.
    requests: int64 ``[T]``, row of the block table.
    num_visible: int64 ``[T]``; keys from there on score minus infinity.
    rounded: round intermediate values to bfloat16.
"""


# -- choice ---------------------------------------------------------------------------------------


def _check_matrix(name: str, scores: Tensor) -> None:
    if scores.dtype != torch.float32 or scores.dim() != 2:
        raise refuse(name, "scores", scores, "float32 [T, n]")


def _check_blocks(
    scores: Tensor, num_visible: Tensor, block_rows: int, count: int
) -> tuple[int, int]:
    name = "candidate_blocks"
    _check_matrix(name, scores)
    check_row_numbers(name, "num_visible", num_visible, (scores.shape[0],))
    if block_rows < 1:
        raise refuse(name, "block_rows", block_rows, "1 and more")
    if count < 1:
        raise refuse(name, "count", count, "1 and more")
    return scores.shape[0], -(-scores.shape[1] // block_rows)


def _blocks_reference(scores, num_visible, block_rows, count):
    _check_blocks(scores, num_visible, block_rows, count)
    return reference.candidate_blocks(scores, num_visible, block_rows, count)


def _blocks_fake(scores, num_visible, block_rows, count):
    shape = _check_blocks(scores, num_visible, block_rows, count)
    return scores.new_empty(shape, dtype=torch.bool)


def _blocks_cpu(scores, num_visible, block_rows, count):
    kept = _blocks_fake(scores, num_visible, block_rows, count)
    scores, num_visible = scores.contiguous(), num_visible.contiguous()
    cpu_kernels().candidate_blocks(
        scores.data_ptr(),
        num_visible.data_ptr(),
        *scores.shape,
        block_rows,
        kept.shape[1],
        count,
        kept.data_ptr(),
        torch.get_num_threads(),
    )
    return kept


candidate_blocks = define(
    "candidate_blocks(Tensor scores, Tensor num_visible, int block_rows, int count) -> Tensor",
    _blocks_reference,
    _blocks_fake,
    _blocks_cpu,
)
"""Boolean ``[T, blocks]``: the ``count`` blocks of ``block_rows`` rows with the highest score.

The block that holds the newest visible row, ``num_visible - 1`` (int64 ``[T]``), is always kept.
"""


def _check_select(scores: Tensor, count: int, kept_blocks: Tensor | None, block_rows: int) -> None:
    name = "select_rows"
    _check_matrix(name, scores)
    if count < 1:
        raise refuse(name, "count", count, "1 and more")
    if kept_blocks is None:
        return
    if block_rows < 1:
        raise refuse(name, "block_rows", block_rows, "1 and more")
    shape = (scores.shape[0], -(-scores.shape[1] // block_rows))
    require(name, "kept_blocks", kept_blocks, (torch.bool,), shape)


def _select_reference(scores, count, kept_blocks=None, block_rows=0):
    _check_select(scores, count, kept_blocks, block_rows)
    if kept_blocks is not None:
        kept = kept_blocks.repeat_interleave(block_rows, 1)[:, : scores.shape[1]]
        scores = scores.masked_fill(~kept, NEGATIVE_INFINITY)
    return reference.selected_rows(reference.select_highest(scores, count), count)


def _select_fake(scores, count, kept_blocks=None, block_rows=0):
    _check_select(scores, count, kept_blocks, block_rows)
    return scores.new_empty(scores.shape[0], count, dtype=torch.int64)


def _select_cpu(scores, count, kept_blocks=None, block_rows=0):
    rows = _select_fake(scores, count, kept_blocks, block_rows)
    scores = scores.contiguous()
    kept_blocks = None if kept_blocks is None else kept_blocks.contiguous()
    cpu_kernels().select_rows(
        scores.data_ptr(),
        *scores.shape,
        count,
        0 if kept_blocks is None else kept_blocks.data_ptr(),
        0 if kept_blocks is None else kept_blocks.shape[1],
        block_rows,
        rows.data_ptr(),
        torch.get_num_threads(),
    )
    return rows


select_rows = define(
    "select_rows(Tensor scores, int count, Tensor? kept_blocks=None, int block_rows=0) -> Tensor",
    _select_reference,
    _select_fake,
    _select_cpu,
)
"""Rows with the ``count`` highest scores above minus infinity: int64 ``[T, count]``, ascending,
-1 padded. With ``kept_blocks`` (see ``candidate_blocks``), from those blocks only.
"""
