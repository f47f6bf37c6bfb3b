"""The blocks of rows with the highest scores, one token a program."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from vllm_deepinfer.ops import indexer
from vllm_deepinfer.ops.triton.selection import choose, find_threshold, load_orders

BLOCKS_AT_ONCE = 256


@triton.jit
def block_maxima_kernel(
    scores,
    num_visible,
    maxima,
    num_scores,
    num_blocks,
    block_rows,
    tile_blocks: tl.constexpr,
    tile_rows: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1) * tile_blocks + tl.arange(0, tile_blocks)
    in_block = tl.arange(0, tile_rows)
    row = block[:, None] * block_rows + in_block[None, :]
    held = (in_block < block_rows)[None, :] & (row < num_scores)
    score = tl.load(scores + token * num_scores + row, mask=held, other=float("-inf"))
    unordered = tl.max((score != score).to(tl.int32), axis=1) != 0
    highest = tl.where(unordered, float("nan"), tl.max(score, axis=1))
    visible = tl.load(num_visible + token)
    newest = (visible - 1) // block_rows
    highest = tl.where((block == newest) & (visible > 0), float("inf"), highest)
    tl.store(maxima + token * num_blocks + block, highest, mask=block < num_blocks)


@triton.jit
def keep_blocks_kernel(maxima, kept, num_blocks, count, tile_blocks: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    maxima += token * num_blocks
    threshold, num_ties = find_threshold(maxima, maxima, num_blocks, 1, count, False, tile_blocks)
    tile = tl.arange(0, tile_blocks)
    ties_taken = tl.zeros((), tl.int32)
    for start in range(0, num_blocks, tile_blocks):
        order, allowed = load_orders(maxima, maxima, start, num_blocks, 1, False, tile)
        chosen, ties_taken = choose(order, allowed, threshold, ties_taken, num_ties)
        place = kept + token * num_blocks + start + tile
        tl.store(place, chosen, mask=start + tile < num_blocks)


def candidate_blocks(scores: Tensor, num_visible: Tensor, block_rows: int, count: int) -> Tensor:
    """Boolean ``[T, blocks]``: the ``count`` blocks of ``block_rows`` rows that score highest."""
    kept = indexer._blocks_fake(scores, num_visible, block_rows, count)
    tokens, num_blocks = kept.shape
    if not kept.numel():
        return kept
    maxima = scores.new_empty(tokens, num_blocks)
    block_maxima_kernel[tokens, triton.cdiv(num_blocks, BLOCKS_AT_ONCE)](
        scores.contiguous(), num_visible.contiguous(), maxima, scores.shape[1], num_blocks,
        block_rows, tile_blocks=BLOCKS_AT_ONCE, tile_rows=triton.next_power_of_2(block_rows),
        num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip
    keep_blocks_kernel[tokens,](
        maxima, kept, num_blocks, count, tile_blocks=BLOCKS_AT_ONCE, num_warps=4,
        enable_fp_fusion=False,
    )  # fmt: skip
    return kept
