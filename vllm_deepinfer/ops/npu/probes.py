"""Small cases of every operation, for the check of a device; the same in every run.

Sizes are the least that operators of the Ascend 950 take, and groups differ by powers of two, so
that a scale out of place shows. Groups of zeros and rows that are not stored are among them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from vllm_deepinfer.ops import formats, reference_linear
from vllm_deepinfer.ops.records import Record, RecordKind, record_of

BF16, F32 = torch.bfloat16, torch.float32
TOKENS, WIDTH, PAIRS = 5, 512, 32
BLOCKS, BLOCK_ROWS = 3, 16
STREAMS, HIDDEN = 4, 256
SEED = 950


class _Values:
    """Random values of one case."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def normal(self, *shape: int, dtype: torch.dtype = F32) -> Tensor:
        return torch.randn(*shape, generator=self.generator, dtype=F32).to(dtype)

    def uneven(self, *shape: int, dtype: torch.dtype = BF16) -> Tensor:
        """Over several powers of two, one a group of 32 columns; the last group is zero."""
        groups = (*shape[:-1], shape[-1] // formats.FP8_GROUP)
        powers = torch.randint(-5, 6, groups, generator=self.generator).to(F32).exp2()
        powers[..., -1] = 0
        return (self.normal(*shape) * powers.repeat_interleave(formats.FP8_GROUP, -1)).to(dtype)

    def whole(self, low: int, high: int, *shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
        return torch.randint(low, high, shape, generator=self.generator, dtype=dtype)

    def turns(self, tokens: int) -> tuple[Tensor, Tensor]:
        angles = self.normal(tokens, PAIRS)
        return angles.cos(), angles.sin()

    def cache(self, record: Record) -> Tensor:
        """Every row a record; blocks lie further apart than their rows need."""
        rows = record.encode(self.uneven(BLOCKS, BLOCK_ROWS, record.width))
        wide = torch.zeros(BLOCKS, 2, BLOCK_ROWS, record.num_bytes, dtype=torch.uint8)
        wide[:, 0] = rows
        return wide[:, 0]

    def rows(self, *shape: int, missing: bool = True) -> Tensor:
        """Different cache rows, the last of every token missing if asked."""
        count = BLOCKS * BLOCK_ROWS
        chosen = torch.randperm(count, generator=self.generator)[: shape[-1]]
        rows = chosen.expand(shape).clone()
        if missing:
            rows[..., -1] = -1
        return rows


def _fp8_linear(plain: bool) -> Callable[..., list]:
    def case(seed: int = SEED) -> list:
        values, groups = _Values(seed), 2 if plain else 1
        x = values.uneven(TOKENS, groups * 192)
        weight, scale = formats.quantise_fp8_blocks(values.uneven(128, 192))
        rows = (x, None) if plain else reference_linear.quantise_fp8(x)
        return [*rows, weight, scale, BF16, groups]

    return case


def _fp4_experts(seed: int = SEED) -> list:
    values, hidden, inter, held = _Values(seed), 128, 192, 3
    x, scales = reference_linear.quantise_fp8(values.uneven(TOKENS, hidden))
    stacks = [
        tensor
        for shape in ((inter, hidden), (inter, hidden), (hidden, inter))
        for tensor in formats.quantise_fp4_rows(values.uneven(held, *shape, dtype=F32))
    ]
    # Of six experts, the second to the fourth are here; the last token chose none of them.
    chosen = torch.tensor([[0, 1], [1, 3], [2, 3], [3, 5], [4, 5]])
    weights = values.normal(TOKENS, 2).abs()
    return [x, scales, chosen, weights, *stacks, 1, 10.0, BF16]


def _store(kind: RecordKind) -> Callable[..., list]:
    def case(seed: int = SEED) -> list:
        values = _Values(seed)
        cache = values.cache(record_of(kind, WIDTH))
        rows = values.rows(TOKENS)
        x = values.uneven(TOKENS, WIDTH)
        return [cache, rows, x, *values.turns(TOKENS), int(kind), BF16]

    return case


def _sink_attention(seed: int = SEED) -> list:
    values, heads = _Values(seed), 64
    window, selected = (
        values.cache(record_of(kind, WIDTH)) for kind in (RecordKind.FP8, RecordKind.FP4_FINE)
    )
    query = values.normal(TOKENS, heads, WIDTH, dtype=BF16)
    return [
        query, values.normal(heads), WIDTH**-0.5, BF16, window, values.rows(TOKENS, 24),
        int(RecordKind.FP8), selected, values.rows(TOKENS, 32), int(RecordKind.FP4_FINE),
    ]  # fmt: skip


def _index_scores(seed: int = SEED) -> list:
    values, heads, width = _Values(seed), 32, 128
    cache = values.cache(record_of(RecordKind.FP4, width))
    query = values.normal(TOKENS, heads, width, dtype=BF16)
    weights = values.normal(TOKENS, heads).to(BF16).to(F32)
    table = torch.tensor([[0, 2], [1, 0]], dtype=torch.int32)
    requests = torch.tensor([0, 0, 1, 1, 1])
    num_visible = torch.tensor([1, 20, 0, 17, 32])
    return [query, weights, cache, int(RecordKind.FP4), table, requests, num_visible, 32, True]


def _scores(values: _Values) -> Tensor:
    scores = values.whole(-3, 4, TOKENS, 45).to(F32)  # ties, which go to the lowest row
    scores[2, 10:] = float("-inf")
    return scores


def _candidate_blocks(seed: int = SEED) -> list:
    return [_scores(_Values(seed)), torch.tensor([45, 1, 10, 0, 44]), 8, 2]


def _select_rows(seed: int = SEED) -> list:
    values = _Values(seed)
    return [_scores(values), 12, values.whole(0, 2, TOKENS, 6).bool(), 8]


def _streams(seed: int) -> tuple[_Values, Tensor]:
    values = _Values(seed)
    return values, values.normal(TOKENS, STREAMS, HIDDEN, dtype=BF16)


def _stream_mixes(seed: int = SEED) -> list:
    values, streams = _streams(seed)
    projection = values.normal(24, STREAMS * HIDDEN) * 0.05
    return [streams, projection, values.normal(3), values.normal(24), 1e-20, 1e-6, 20]


def _mix_streams(seed: int = SEED) -> list:
    values, streams = _streams(seed)
    return [streams, values.normal(TOKENS, STREAMS), BF16]


def _expand_streams(seed: int = SEED) -> list:
    values, streams = _streams(seed)
    out = values.normal(TOKENS, HIDDEN, dtype=BF16)
    comb = values.normal(TOKENS, STREAMS, STREAMS)
    return [out, streams, values.normal(TOKENS, STREAMS), comb, BF16]


def _add_memory(seed: int = SEED) -> list:
    values, streams = _streams(seed)
    memory = values.normal(TOKENS, (STREAMS + 1) * HIDDEN, dtype=BF16)
    weights = [values.normal(STREAMS, HIDDEN, dtype=BF16) for _ in range(2)]
    return [streams, memory, *weights, 1e-20]


def _pool_pairs(seed: int = SEED) -> list:
    values = _Values(seed)
    ring = values.cache(record_of(RecordKind.FLOAT32, 2 * WIDTH))
    partner_rows = torch.tensor([7, -1])
    closing, kept, kept_rows = torch.tensor([0, 4]), torch.tensor([1, 2]), torch.tensor([40, 7])
    state = [values.normal(TOKENS, WIDTH) for _ in range(2)]
    return [*state, ring, closing, partner_rows, kept, kept_rows]


def _engram_rows(seed: int = SEED) -> list:
    ngrams = torch.tensor([[5, 3, -1], [9, 5, 3], [99, 9, 5], [0, 99, 9]])
    token_map = torch.arange(16) // 2
    multipliers = torch.tensor([31, 1_000_003, 998_244_353])
    primes, offsets = torch.tensor([[67, 71], [73, 79]]), torch.tensor([[0, 67], [138, 211]])
    return [ngrams, token_map, 1, multipliers, primes, offsets]


def _load_table_rows(seed: int = SEED) -> list:
    values = _Values(seed)
    table = formats.quantise_fp8_rows(values.uneven(11, 64, dtype=F32))
    return [*table, values.whole(0, 11, TOKENS, 3), BF16]


def _load_rows(seed: int = SEED) -> list:
    values = _Values(seed)
    kind = RecordKind.FP4_FINE
    return [values.cache(record_of(kind, WIDTH)), values.rows(TOKENS, 9), int(kind), WIDTH]


def _rope_angles(seed: int = SEED) -> list:
    frequencies = 10000.0 ** (-torch.arange(PAIRS) / PAIRS)
    return [torch.tensor([0, 1, 4095, 65537, 1048575]), frequencies, 2]


def _rotate(seed: int = SEED) -> list:
    values = _Values(seed)
    return [values.normal(TOKENS, 64, WIDTH, dtype=BF16), *values.turns(TOKENS), BF16, True]


def _rms_norm(seed: int = SEED) -> list:
    values = _Values(seed)
    x = values.normal(TOKENS, WIDTH, dtype=BF16)
    x[1] = 0
    return [x, values.normal(WIDTH, dtype=BF16), 1e-20, BF16]


def _clamped_swiglu(seed: int = SEED) -> list:
    values = _Values(seed)
    gate, up = ((8 * values.normal(TOKENS, 256)).to(BF16) for _ in range(2))
    return [gate, up, 10.0, BF16]


def _route(seed: int = SEED) -> list:
    values = _Values(seed)
    return [values.normal(TOKENS, 384), values.normal(384), 6, True, 1.5]


def _sum_experts(seed: int = SEED) -> list:
    values = _Values(seed)
    chosen = torch.tensor([[3, 1, 2]]).expand(TOKENS, 3).contiguous()
    outputs = values.normal(TOKENS, 3, HIDDEN, dtype=BF16)
    return [outputs, chosen, values.normal(TOKENS, HIDDEN, dtype=BF16), BF16]


def _quantise_fp8(seed: int = SEED) -> list:
    return [_Values(seed).uneven(TOKENS, 192)]


def _plain_linear(seed: int = SEED) -> list:
    values = _Values(seed)
    return [values.normal(TOKENS, 256, dtype=BF16), values.normal(96, 256, dtype=BF16)]


PROBES: dict[str, tuple[Callable[..., list], ...]] = {
    "add_memory": (_add_memory,),
    "candidate_blocks": (_candidate_blocks,),
    "clamped_swiglu": (_clamped_swiglu,),
    "engram_rows": (_engram_rows,),
    "expand_streams": (_expand_streams,),
    "fp4_experts": (_fp4_experts,),
    "fp8_linear": (_fp8_linear(plain=False), _fp8_linear(plain=True)),
    "index_scores": (_index_scores,),
    "load_rows": (_load_rows,),
    "load_table_rows": (_load_table_rows,),
    "mix_streams": (_mix_streams,),
    "plain_linear": (_plain_linear,),
    "pool_pairs": (_pool_pairs,),
    "quantise_fp8": (_quantise_fp8,),
    "rms_norm": (_rms_norm,),
    "rope_angles": (_rope_angles,),
    "rotate": (_rotate,),
    "route": (_route,),
    "select_rows": (_select_rows,),
    "sink_attention": (_sink_attention,),
    "store_rotated": (_store(RecordKind.FP8), _store(RecordKind.FP4), _store(RecordKind.FP4_FINE)),
    "stream_mixes": (_stream_mixes,),
    "sum_experts": (_sum_experts,),
}
"""Cases by operation; each makes the arguments, in order, from a seed or the usual one."""
