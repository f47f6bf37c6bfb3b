"""Choice of a row's highest scores inside kernels: a radix search for the lowest score chosen.

The rule of a choice is written in ``ops/indexer``. A row is one program's, so no other row has a
part in it.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def order_of(score):
    """Integers, int64, in the order of float32 scores: zeros are equal, NaN is highest."""
    bits = tl.where(score == 0.0, 0.0, score).to(tl.int32, bitcast=True)
    # Two's complement orders positive floats; negative ones the other way round.
    order = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    return tl.where(score == score, order, 0x7FFFFFFF).to(tl.int64) + 0x80000000


@triton.jit
def load_orders(scores, kept, start, num_scores, block_rows, masked: tl.constexpr, tile):
    """Orders of a tile of scores, and which of them may be chosen.

    With ``masked``, only columns of blocks that ``kept`` holds.
    """
    column = start + tile
    allowed = column < num_scores
    score = tl.load(scores + column, mask=allowed, other=float("-inf"))
    allowed &= score != float("-inf")
    if masked:
        allowed &= tl.load(kept + column // block_rows, mask=allowed, other=0) != 0
    return order_of(score), allowed


@triton.jit
def find_threshold(
    scores, kept, num_scores, block_rows, count, masked: tl.constexpr, tile_scores: tl.constexpr
):
    """The lowest order chosen, and how many of that order are.

    Orders have 32 bits; eight of them, from the highest, are settled in each of four passes. Where
    there are no more than ``count`` scores, the threshold is below all of them.
    """
    tile = tl.arange(0, tile_scores)
    digit_of_bin = tl.arange(0, 256)
    prefix = tl.zeros((), tl.int64)
    wanted = tl.zeros((), tl.int32) + count
    enough = True
    for step in range(4):
        shift = 24 - 8 * step
        histogram = tl.zeros((256,), tl.int32)
        for start in range(0, num_scores, tile_scores):
            order, allowed = load_orders(scores, kept, start, num_scores, block_rows, masked, tile)
            allowed &= (order >> (shift + 8)) == prefix
            digit = ((order >> shift) & 255).to(tl.int32)
            histogram += tl.histogram(digit, 256, mask=allowed)
        at_most = tl.cumsum(histogram, axis=0)
        total = tl.sum(histogram, axis=0)
        if step == 0:
            enough = total > count
        above = total - at_most
        # The digit of the count-th highest: fewer than that many are above it, not with it.
        found = tl.max(tl.where(total - at_most + histogram >= wanted, digit_of_bin, 0), axis=0)
        wanted -= tl.sum(tl.where(digit_of_bin == found, above, 0), axis=0)
        prefix = prefix * 256 + found
    return tl.where(enough, prefix, -1), tl.where(enough, wanted, 0)


@triton.jit
def choose(order, allowed, threshold, ties_taken, num_ties):
    """Which of a tile are chosen, and how many ties were by then, ``ties_taken`` before it."""
    tied = allowed & (order == threshold)
    rank = ties_taken + tl.cumsum(tied.to(tl.int32), axis=0) - 1
    chosen = (allowed & (order > threshold)) | (tied & (rank < num_ties))
    return chosen, ties_taken + tl.sum(tied.to(tl.int32), axis=0)
