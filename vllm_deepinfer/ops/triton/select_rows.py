"""The rows with the highest scores, one token a program."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from vllm_deepinfer.ops import indexer
from vllm_deepinfer.ops.triton.selection import choose, find_threshold, load_orders

SCORES_AT_ONCE = 1024


@triton.jit
def select_rows_kernel(
    scores,
    kept,
    rows,
    num_scores,
    num_blocks,
    block_rows,
    count,
    masked: tl.constexpr,
    tile_scores: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    scores += token * num_scores
    kept += token * num_blocks
    rows += token * count
    threshold, num_ties = find_threshold(
        scores, kept, num_scores, block_rows, count, masked, tile_scores
    )
    tile = tl.arange(0, tile_scores)
    num_chosen = tl.zeros((), tl.int32)
    ties_taken = tl.zeros((), tl.int32)
    for start in range(0, num_scores, tile_scores):
        order, allowed = load_orders(scores, kept, start, num_scores, block_rows, masked, tile)
        chosen, ties_taken = choose(order, allowed, threshold, ties_taken, num_ties)
        place = num_chosen + tl.cumsum(chosen.to(tl.int32), axis=0) - 1
        tl.store(rows + place, (start + tile).to(tl.int64), mask=chosen)
        num_chosen += tl.sum(chosen.to(tl.int32), axis=0)
    for start in range(0, count, tile_scores):
        place = start + tile
        missing = tl.full((tile_scores,), -1, tl.int64)
        tl.store(rows + place, missing, mask=(place >= num_chosen) & (place < count))


def select_rows(
    scores: Tensor, count: int, kept_blocks: Tensor | None = None, block_rows: int = 0
) -> Tensor:
    """Rows with the ``count`` highest scores: int64 ``[T, count]``, ascending, -1 padded."""
    rows = indexer._select_fake(scores, count, kept_blocks, block_rows)
    if rows.numel():
        scores = scores.contiguous()
        # Without blocks the pointer is not read, but must be one.
        kept = scores if kept_blocks is None else kept_blocks.contiguous()
        select_rows_kernel[len(rows),](
            scores, kept, rows, scores.shape[1], kept.shape[1], max(block_rows, 1), count,
            masked=kept_blocks is not None, tile_scores=SCORES_AT_ONCE, num_warps=4,
            enable_fp_fusion=False,
        )  # fmt: skip
    return rows
