"""Random arguments of the model's row-wise operations, sliced by rows.

A case makes arguments for so many rows; ``run(operation, rows)`` computes some of them with the
operation itself or with its reference, and returns tensors with one entry a row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from vllm_deepinfer.ops import attention, caches, engram, indexer, norm, rotation, router, streams
from vllm_deepinfer.ops.records import RecordKind, record_of

BF16, F32 = torch.bfloat16, torch.float32
FORMATS = (RecordKind.FP8, RecordKind.FP4, RecordKind.FP4_FINE, RecordKind.BFLOAT16)
WIDTH, HEADS, PAIRS = 96, 5, 16
BLOCKS, BLOCK_ROWS = 6, 40
SELECTED = 64


def resize(width: int, heads: int, pairs: int, block_rows: int) -> None:
    """Other sizes for cases made from now on."""
    global WIDTH, HEADS, PAIRS, BLOCK_ROWS
    WIDTH, HEADS, PAIRS, BLOCK_ROWS = width, heads, pairs, block_rows


@dataclass(frozen=True)
class Case:
    """``exact``: the kernel gives the reference's bits; otherwise they agree to 1e-6."""

    make: Callable[[int], Callable[[bool, Any], tuple[Tensor, ...]]]
    exact: bool


def operation(reference: bool, name: str) -> Callable:
    """An operation of this package by its name, or its reference, which takes the same."""
    if not reference:
        return getattr(torch.ops.vllm_deepinfer, name).default
    return REFERENCES[name]


REFERENCES = {
    "rms_norm": norm._reference,
    "stream_mixes": streams._mixes_reference,
    "mix_streams": streams._mix_reference,
    "expand_streams": streams._expand_reference,
    "rope_angles": rotation._angles_reference,
    "rotate": rotation._rotate_reference,
    "store_rotated": caches._store_reference,
    "load_rows": caches._load_reference,
    "pool_pairs": caches._pool_reference,
    "sink_attention": attention._reference,
    "index_scores": indexer._scores_reference,
    "candidate_blocks": indexer._blocks_reference,
    "select_rows": indexer._select_reference,
    "engram_rows": engram._rows_reference,
    "load_table_rows": engram._table_reference,
    "add_memory": engram._memory_reference,
    "route": router._route_reference,
    "clamped_swiglu": router._swiglu_reference,
    "sum_experts": router._sum_reference,
}


def simple(
    name: str, rows: int, per_row: list[Tensor], *fixed: Any
) -> Callable[[bool, Any], tuple[Tensor, ...]]:
    """An operation whose first arguments are per row and whose others are not."""

    def run(reference: bool, part: Any) -> tuple[Tensor, ...]:
        result = operation(reference, name)(*(x[part].contiguous() for x in per_row), *fixed)
        return result if isinstance(result, tuple) else (result,)

    return run


def rms_norm(dtype: torch.dtype, rows: int):
    x = torch.randn(rows, 144).to(dtype)
    return simple("rms_norm", rows, [x], torch.randn(144).to(BF16), 1e-20, F32)


def random_streams(rows: int, dtype: torch.dtype = BF16) -> Tensor:
    return torch.randn(rows, streams.STREAMS, 48).to(dtype)


def stream_mixes(dtype: torch.dtype, rows: int):
    weights = torch.randn(streams.MIXES, 4 * 48), torch.rand(3), torch.randn(streams.MIXES)
    return simple("stream_mixes", rows, [random_streams(rows, dtype)], *weights, 1e-20, 1e-6, 20)


def mix_streams(dtype: torch.dtype, rows: int):
    return simple("mix_streams", rows, [random_streams(rows, dtype), torch.rand(rows, 4)], F32)


def expand_streams(dtype: torch.dtype, rows: int):
    arguments = [
        torch.randn(rows, 48).to(dtype),
        random_streams(rows, dtype),
        torch.rand(rows, 4),
        torch.rand(rows, 4, 4),
    ]
    return simple("expand_streams", rows, arguments, F32)


def turns(rows: int) -> tuple[Tensor, Tensor]:
    angles = 1000 * torch.rand(rows, PAIRS)
    return angles.cos(), angles.sin()


def rope_angles(rows: int):
    positions = torch.randint(0, 1 << 20, (rows,))
    return simple("rope_angles", rows, [positions], 1e4 ** -torch.linspace(0, 1, PAIRS), 2)


def rotate(dtype: torch.dtype, rows: int):
    x = torch.randn(rows, HEADS, WIDTH).to(dtype)
    return simple("rotate", rows, [x, *turns(rows)], BF16, True)


def store_rotated(kind: RecordKind, rows: int):
    """Cache rows as stored."""
    x = adversarial(rows, WIDTH).to(BF16)
    cos, sin = turns(rows)
    size = record_of(kind, WIDTH).num_bytes

    def run(reference: bool, part: Any) -> tuple[Tensor, ...]:
        count = len(x[part])
        cache = torch.zeros(-(-count // 8), 9, size + 3, dtype=torch.uint8)[:, :8, :size]
        numbers = torch.randperm(8 * len(cache))[:count]
        store = operation(reference, "store_rotated")
        store(cache, numbers, x[part], cos[part], sin[part], kind, BF16)
        return (cache[numbers // 8, numbers % 8],)

    return run


def adversarial(rows: int, width: int) -> Tensor:
    """Every magnitude a group of values can have, zeros, and midpoints between codes."""
    x = torch.randn(rows, width) * 2.0 ** torch.randint(-40, 40, (rows, 1))
    x[::3] = torch.randint(-24, 25, x[::3].shape) / 4.0
    x[1::7, ::2] = 0.0
    x[5::11] = 0.0
    return x


def filled_cache(kind: RecordKind, width: int) -> Tensor:
    """A cache of random rows, whose blocks are strided."""
    record = record_of(kind, width)
    encoded = record.encode(torch.randn(BLOCKS, BLOCK_ROWS, width).to(BF16))
    padded = torch.zeros(BLOCKS, BLOCK_ROWS + 1, record.num_bytes, dtype=torch.uint8)
    padded[:, :BLOCK_ROWS] = encoded
    return padded[:, :BLOCK_ROWS]


def random_rows(rows: int, most: int) -> Tensor:
    """Cache rows ``[rows, most]``, a third of them missing, the first one never."""
    numbers = torch.randint(0, BLOCKS * BLOCK_ROWS, (rows, most))
    numbers[torch.rand(rows, most) < 0.33] = -1
    numbers[:, 0].clamp_(min=0)
    return numbers


def load_rows(kind: RecordKind, rows: int):
    cache, numbers = filled_cache(kind, WIDTH), random_rows(rows, 3)

    def run(reference: bool, part: Any) -> tuple[Tensor, ...]:
        return (operation(reference, "load_rows")(cache, numbers[part], kind, WIDTH),)

    return run


def pool_pairs(rows: int):
    """Every token closes a pair: its partner is in the ring or, for odd ones, the token before."""
    values, scores = torch.randn(2, 2 * rows, WIDTH).unbind(0)
    ring = torch.randn(rows, 1, 2 * WIDTH).view(torch.uint8)

    def run(reference: bool, part: Any) -> tuple[Tensor, ...]:
        tokens = torch.arange(rows)[part]
        here = torch.stack([2 * tokens, 2 * tokens + 1], 1).flatten()
        own = ring.clone()
        closing, even = 2 * torch.arange(len(tokens)) + 1, tokens % 2 == 0
        partners = torch.where(even, tokens, -1)
        pooled = operation(reference, "pool_pairs")(
            values[here], scores[here], own, closing, partners, closing, tokens
        )
        return pooled, own[tokens]

    return run


def sink_attention(kinds: tuple[RecordKind, RecordKind], rows: int):
    window, selected = (filled_cache(kind, WIDTH) for kind in kinds)
    window_rows, selected_rows = random_rows(rows, 37), random_rows(rows, 20)
    query, sink = torch.randn(rows, HEADS, WIDTH).to(BF16), torch.randn(HEADS)

    def run(reference: bool, part: Any) -> tuple[Tensor, ...]:
        out = operation(reference, "sink_attention")(
            query[part], sink, 0.1, F32, window, window_rows[part], kinds[0],
            selected, selected_rows[part], kinds[1],
        )  # fmt: skip
        return (out,)

    return run


def index_scores(kind: RecordKind, rows: int):
    cache, heads = filled_cache(kind, WIDTH), 8
    table = torch.stack([torch.randperm(BLOCKS) for _ in range(3)]).to(torch.int32)
    num_visible = torch.randint(0, BLOCKS * BLOCK_ROWS + 1, (rows,))
    requests = torch.randint(0, 3, (rows,))
    query, weights = torch.randn(rows, heads, WIDTH).to(BF16), torch.randn(rows, heads).to(BF16)

    def run(reference: bool, part: Any) -> tuple[Tensor, ...]:
        scores = operation(reference, "index_scores")(
            query[part], weights[part].to(F32), cache, kind, table, requests[part],
            num_visible[part], BLOCKS * BLOCK_ROWS, kind is RecordKind.FP4,
        )  # fmt: skip
        return (scores,)

    return run


def tied_scores(rows: int, count: int) -> Tensor:
    """Few distinct values, signed zeros, NaN in some rows and nothing at all in others."""
    values = torch.tensor([-1.0, -0.0, 0.0, 0.5, 2.0, float("-inf"), float("-inf")])
    scores = values[torch.randint(len(values), (rows, count))]
    scores[::5] = torch.randn(scores[::5].shape).to(BF16).to(F32)
    scores[3::9] = float("-inf")
    scores[4::9, 2::60], scores[4::9, 7::90] = float("nan"), -float("nan")
    return scores


def candidate_blocks(rows: int):
    num_visible = torch.randint(0, 203, (rows,))
    scores = tied_scores(rows, 203)
    scores[torch.arange(203) >= num_visible.unsqueeze(1)] = float("-inf")
    return simple("candidate_blocks", rows, [scores, num_visible], 8, 5)


def select_rows(with_blocks: bool, rows: int):
    scores = tied_scores(rows, 203)
    kept = torch.rand(rows, 26) < 0.4

    def run(reference: bool, part: Any) -> tuple[Tensor, ...]:
        select = operation(reference, "select_rows")
        return (select(scores[part], SELECTED, *((kept[part], 8) if with_blocks else ())),)

    return run


def engram_rows(rows: int):
    ngrams = torch.randint(-1, 120, (rows, 4))
    primes = torch.tensor([[101, 103], [107, 109], [113, 127]])
    offsets = torch.arange(6).view(3, 2) * 200
    multipliers = torch.randint(1 << 40, 1 << 62, (4,))
    return simple(
        "engram_rows", rows, [ngrams], torch.randperm(100), 7, multipliers, primes, offsets
    )


def load_table_rows(rows: int):
    codes = torch.randint(0, 256, (300, 64), dtype=torch.uint8)
    codes[codes & 0x7F == 0x7F] = 0
    scales = torch.randint(110, 130, (300, 2), dtype=torch.uint8)
    numbers = torch.randint(0, 300, (rows, 4))

    def run(reference: bool, part: Any) -> tuple[Tensor, ...]:
        load = operation(reference, "load_table_rows")
        return (load(codes.view(torch.float8_e4m3fn), scales, numbers[part], BF16),)

    return run


def add_memory(dtype: torch.dtype, rows: int):
    arguments = [random_streams(rows, F32), torch.randn(rows, 5 * 48).to(dtype)]
    weights = torch.randn(2, 4, 48).to(BF16).unbind(0)
    return simple("add_memory", rows, arguments, *(w.contiguous() for w in weights), 1e-20)


def route(rows: int):
    """Ties among experts, and logits on both sides of every switch."""
    logits = torch.randn(rows, 24) * torch.tensor([1.0, 8.0, 30.0])[torch.randint(3, (rows, 1))]
    logits[::4] = torch.randint(-2, 3, logits[::4].shape).to(F32)
    return simple("route", rows, [logits], torch.randn(24) / 8, 4, True, 1.5)


def clamped_swiglu(dtype: torch.dtype, rows: int):
    gate, up = (8 * torch.randn(2, rows, 80)).to(dtype).unbind(0)
    return simple("clamped_swiglu", rows, [gate, up], 10.0, F32)


def sum_experts(dtype: torch.dtype, rows: int):
    chosen = torch.stack([torch.randperm(9)[:3] for _ in range(rows)])
    outputs, shared = torch.randn(rows, 3, 48).to(dtype), torch.randn(rows, 48).to(dtype)
    return simple("sum_experts", rows, [outputs, chosen, shared], F32)


PAIRED = (
    (RecordKind.FP8, RecordKind.FP4_FINE),
    (RecordKind.BFLOAT16, RecordKind.BFLOAT16),
)
CASES: dict[str, Case] = {
    "rope_angles": Case(rope_angles, True),
    "pool_pairs": Case(pool_pairs, False),
    "candidate_blocks": Case(candidate_blocks, True),
    "select_rows": Case(partial(select_rows, False), True),
    "select_rows_of_blocks": Case(partial(select_rows, True), True),
    "engram_rows": Case(engram_rows, True),
    "load_table_rows": Case(load_table_rows, True),
    "route": Case(route, False),
    **{f"store_rotated_{k.name}": Case(partial(store_rotated, k), True) for k in FORMATS},
    **{f"load_rows_{k.name}": Case(partial(load_rows, k), True) for k in FORMATS},
    **{f"sink_attention_{k[0].name}": Case(partial(sink_attention, k), False) for k in PAIRED},
    **{
        f"index_scores_{k.name}": Case(partial(index_scores, k), k is RecordKind.FP4)
        for k in (RecordKind.FP4, RecordKind.BFLOAT16)
    },
    **{
        f"{make.__name__}_{str(dtype).removeprefix('torch.')}": Case(
            partial(make, dtype), make is rotate
        )
        for make in (
            rms_norm, stream_mixes, mix_streams, expand_streams, rotate, add_memory,
            clamped_swiglu, sum_experts,
        )
        for dtype in (BF16, F32)
    },
}  # fmt: skip
