"""Tile sizes of the matrix kernels, by target and shape.

A static table: tuning needs the hardware. The sizes follow from what the instructions take (128
weight rows, columns in whole scale groups) and from how many programs a GPU needs to be busy.

No kernel adds parts of a sum as they happen to be ready (split-K), so a result never depends on how
many rows come with it through the order of additions. It could still depend on the tile, should the
tensor cores round a wide tile's partial sums in another way than a narrow one's. In batch-invariant
mode the number of tokens therefore has no part in the choice.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import triton

from vllm_deepinfer.ops.triton.targets import architecture

MULTIPROCESSORS = {90: 132, 100: 148}
"""Of an H100 and a B200."""
INVARIANT_TILE_TOKENS = 32
_batch_invariant = False


@dataclass(frozen=True)
class Tiles:
    """One program computes ``rows`` weight rows for ``tokens`` tokens, ``columns`` at a time."""

    rows: int
    tokens: int
    columns: int
    num_warps: int
    num_stages: int

    def launch_options(self) -> dict[str, int | bool]:
        return {
            "tile_rows": self.rows,
            "tile_tokens": self.tokens,
            "tile_columns": self.columns,
            "num_warps": self.num_warps,
            "num_stages": self.num_stages,
            "enable_fp_fusion": False,
        }


def set_batch_invariant(enabled: bool) -> None:
    """Whether tiles must not depend on the number of tokens, from the next launch on."""
    global _batch_invariant
    _batch_invariant = enabled


@contextmanager
def batch_invariant(enabled: bool) -> Iterator[None]:
    """``set_batch_invariant`` for a while."""
    before = _batch_invariant
    set_batch_invariant(enabled)
    try:
        yield
    finally:
        set_batch_invariant(before)


def scaled_tiles(num_tokens: int, num_rows: int) -> Tiles:
    """Of products of e4m3 rows with e4m3 or e2m1 weights, both scaled by 32 columns.

    Args:
        num_tokens: rows of the activation that meet one weight.
        num_rows: rows of the weight.
    """
    if _batch_invariant:
        return Tiles(128, INVARIANT_TILE_TOKENS, 128, num_warps=4, num_stages=3)
    tokens = min(max(triton.next_power_of_2(num_tokens), 16), 128)
    target = architecture()
    programs = triton.cdiv(num_rows, 128) * triton.cdiv(num_tokens, tokens)
    # Instructions of SM100 take 128 rows, those of SM90 64 too.
    narrow = target == 90 and programs < MULTIPROCESSORS[target]
    if tokens == 128:
        return Tiles(128, 128, 128, num_warps=8, num_stages=3)
    return Tiles(64 if narrow else 128, tokens, 128, num_warps=4, num_stages=3)


def expert_tiles(num_tokens: int) -> Tiles:
    """Of the experts' products, for about ``num_tokens`` slots an expert.

    The first product keeps two sums: with more of them in a program, registers spill.
    """
    tokens = INVARIANT_TILE_TOKENS
    if not _batch_invariant:
        tokens = min(max(triton.next_power_of_2(num_tokens), 16), 64)
    rows = 64 if architecture() == 90 else 128
    return Tiles(rows, tokens, 128, num_warps=8 if tokens == 64 else 4, num_stages=3)


def plain_tiles(num_tokens: int, wide: bool) -> Tiles:
    """Of products of unquantised rows; ``wide`` says that they are multiplied in float32."""
    tokens = INVARIANT_TILE_TOKENS
    if not _batch_invariant:
        tokens = min(max(triton.next_power_of_2(num_tokens), 16), 64)
    # Four warps are one register short in the wide tile of 32 tokens, on both targets.
    num_warps = 8 if wide and tokens == 32 else 4
    return Tiles(64, tokens, 32 if wide else 64, num_warps, num_stages=3)
