"""Launches of every kernel at the published model's sizes, on tensors that hold nothing.

What a GPU would be asked for in a decode step of a few tokens, in one of a full batch, and in a
prefill. ``compile_only`` compiles them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from vllm_deepinfer.ops.records import Record, RecordKind, record_of
from vllm_deepinfer.ops.triton import launcher
from vllm_deepinfer.ops.triton.tiles import batch_invariant

HIDDEN, HEADS, HEAD_DIM, ROPE_PAIRS = 5120, 64, 512, 32
QUERY_RANK, OUTPUT_RANK, OUTPUT_GROUPS = 1280, 1024, 8
EXPERTS, CHOICES, INNER = 384, 6, 2304
INDEX_HEADS, INDEX_DIM, INDEX_ROWS = 32, 128, 512
STREAMS, MIXES = 4, 24
ENGRAM_HEADS, ENGRAM_SIZE, ENGRAM_DIM = 8, 4, 256
BLOCK_TOKENS, KEYS = 128, 65536
BF16, F32, I64, U8, E4M3 = (
    torch.bfloat16, torch.float32, torch.int64, torch.uint8, torch.float8_e4m3fn,
)  # fmt: skip


@dataclass(frozen=True)
class Launch:
    """A call of an operation's launcher.

    Attributes:
        shapes: what is launched, in words.
        hot: runs in every layer or step of a decode, so that spilled registers would cost.
    """

    operation: str
    shapes: str
    hot: bool
    run: Callable[[], object]


def nothing(*shape: int, dtype: torch.dtype = U8) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def _rows(tokens: int, columns: int) -> tuple[Tensor, Tensor]:
    return nothing(tokens, columns, dtype=E4M3), nothing(tokens, columns // 32)


def _cache(record: Record, tokens_per_row: int = 1) -> Tensor:
    return nothing(64, BLOCK_TOKENS // tokens_per_row, record.num_bytes)


def _quantise(tokens: int):
    return (nothing(tokens, HIDDEN, dtype=BF16),)


def _linear(tokens: int, columns: int, rows: int, groups: int = 1):
    weight = nothing(rows, columns, dtype=E4M3), nothing(-(-rows // 32), columns // 32)
    return *_rows(tokens, groups * columns), *weight, BF16, groups


def _experts(tokens: int):
    stacks = []
    for rows, columns in ((INNER, HIDDEN), (INNER, HIDDEN), (HIDDEN, INNER)):
        stacks += [nothing(EXPERTS, rows, columns // 2), nothing(EXPERTS, rows, columns // 32)]
    chosen = nothing(tokens, CHOICES, dtype=I64), nothing(tokens, CHOICES, dtype=F32)
    return *_rows(tokens, HIDDEN), *chosen, *stacks, 0, 10.0, BF16


def _turns(tokens: int):
    return nothing(tokens, ROPE_PAIRS, dtype=F32), nothing(tokens, ROPE_PAIRS, dtype=F32)


def _store(tokens: int, kind: RecordKind, width: int):
    rows = nothing(tokens, dtype=I64), nothing(tokens, width, dtype=BF16)
    return _cache(record_of(kind, width)), *rows, *_turns(tokens), kind, BF16


def _load(rows: int, kind: RecordKind, width: int):
    return _cache(record_of(kind, width)), nothing(rows, dtype=I64), kind, width


def _attention(tokens: int, selecting: bool):
    window = record_of(RecordKind.FP8, HEAD_DIM)
    selected = record_of(RecordKind.FP4_FINE, HEAD_DIM)
    query = nothing(tokens, HEADS, HEAD_DIM, dtype=BF16), nothing(HEADS, dtype=F32)
    sets = (_cache(window), nothing(tokens, 128, dtype=I64), window.kind)
    if selecting:
        rows = nothing(tokens, INDEX_ROWS, dtype=I64)
        sets += (_cache(selected, tokens_per_row=2), rows, selected.kind)
    return *query, HEAD_DIM**-0.5, BF16, *sets


def _scores(tokens: int):
    record = record_of(RecordKind.FP4, INDEX_DIM)
    query = nothing(tokens, INDEX_HEADS, INDEX_DIM, dtype=BF16)
    weights = nothing(tokens, INDEX_HEADS, dtype=F32)
    table = nothing(8, KEYS // BLOCK_TOKENS, dtype=torch.int32)
    requests = nothing(tokens, dtype=I64), nothing(tokens, dtype=I64)
    return query, weights, _cache(record), record.kind, table, *requests, KEYS, True


def _streams(tokens: int):
    return nothing(tokens, STREAMS, HIDDEN, dtype=BF16)


def _mixes(tokens: int):
    base = nothing(3, dtype=F32), nothing(MIXES, dtype=F32)
    projection = nothing(MIXES, STREAMS * HIDDEN, dtype=F32)
    return _streams(tokens), projection, *base, 1e-20, 1e-6, 20


def _expand(tokens: int):
    mixes = nothing(tokens, STREAMS, dtype=F32), nothing(tokens, STREAMS, STREAMS, dtype=F32)
    return nothing(tokens, HIDDEN, dtype=BF16), _streams(tokens), *mixes, BF16


def _ngrams(tokens: int):
    tables = [nothing(ENGRAM_SIZE - 1, ENGRAM_HEADS, dtype=I64) for _ in range(2)]
    constants = nothing(129280, dtype=I64), 2, nothing(ENGRAM_SIZE, dtype=I64)
    return nothing(tokens, ENGRAM_SIZE, dtype=I64), *constants, *tables


def _table(tokens: int):
    rows = nothing(tokens, (ENGRAM_SIZE - 1) * ENGRAM_HEADS, dtype=I64)
    size = 384006168
    return nothing(size, ENGRAM_DIM, dtype=E4M3), nothing(size, ENGRAM_DIM // 32), rows, BF16


def _memory(tokens: int):
    weights = [nothing(STREAMS, HIDDEN, dtype=BF16) for _ in range(2)]
    memory = nothing(tokens, (STREAMS + 1) * HIDDEN, dtype=BF16)
    return _streams(tokens), memory, *weights, 1e-20


def _pool(tokens: int):
    state = [nothing(tokens, HEAD_DIM, dtype=F32) for _ in range(2)]
    ring = _cache(record_of(RecordKind.FLOAT32, 2 * HEAD_DIM))
    return *state, ring, *(nothing(tokens, dtype=I64) for _ in range(4))


def _sum(tokens: int):
    outputs = nothing(tokens, CHOICES, HIDDEN, dtype=BF16)
    chosen = nothing(tokens, CHOICES, dtype=I64)
    return outputs, chosen, nothing(tokens, HIDDEN, dtype=BF16), BF16


def _matrix_launches() -> list[Launch]:
    launches = []
    for tokens in (1, 64, 2048):
        launches += [
            _launch("fp8_linear", f"{tokens} x {HIDDEN} to {QUERY_RANK}",
                    *_linear(tokens, HIDDEN, QUERY_RANK)),
            _launch("fp8_linear", f"{tokens} x {OUTPUT_GROUPS} groups of 4096 to {OUTPUT_RANK}",
                    *_linear(tokens, 4096, OUTPUT_GROUPS * OUTPUT_RANK, OUTPUT_GROUPS)),
            _launch("fp4_experts", f"{tokens} tokens, {CHOICES} of {EXPERTS}", *_experts(tokens)),
            _launch("plain_linear", f"{tokens} x {HIDDEN} to {EXPERTS}",
                    nothing(tokens, HIDDEN, dtype=BF16), nothing(EXPERTS, HIDDEN, dtype=BF16)),
        ]  # fmt: skip
    for operation, arguments in (("fp8_linear", _linear(64, HIDDEN, QUERY_RANK)),
                                 ("fp4_experts", _experts(64))):  # fmt: skip
        launches.append(_launch(operation, "64 tokens, batch-invariant", *arguments, fixed=True))
    return launches


def _launch(
    operation: str, shapes: str, *arguments: object, hot: bool = True, fixed: bool = False
) -> Launch:
    def run() -> None:
        with batch_invariant(fixed):
            launcher(operation)(*arguments)

    return Launch(operation, shapes, hot, run)


def published_launches() -> list[Launch]:
    """Every kernel at least once; hot ones with each of their tile shapes."""
    fp8, fp4, fine = RecordKind.FP8, RecordKind.FP4, RecordKind.FP4_FINE
    turns = _turns(64)
    query = nothing(64, HEADS, HEAD_DIM, dtype=BF16)
    return [
        _launch("quantise_fp8", f"64 x {HIDDEN}", *_quantise(64)),
        *_matrix_launches(),
        _launch("store_rotated", "window rows", *_store(64, fp8, HEAD_DIM)),
        _launch("store_rotated", "compressed rows", *_store(64, fine, HEAD_DIM)),
        _launch("store_rotated", "index keys", *_store(64, fp4, INDEX_DIM)),
        _launch("load_rows", "window rows", *_load(4096, fp8, HEAD_DIM), hot=False),
        _launch("load_rows", "compressed rows", *_load(4096, fine, HEAD_DIM), hot=False),
        _launch("load_rows", "index keys", *_load(4096, fp4, INDEX_DIM), hot=False),
        _launch("pool_pairs", f"64 x {HEAD_DIM}", *_pool(64)),
        _launch("sink_attention", "64 tokens, window", *_attention(64, selecting=False)),
        _launch("sink_attention", "64 tokens, window and 512 rows", *_attention(64, True)),
        _launch("index_scores", f"64 tokens, {KEYS} keys", *_scores(64)),
        _launch("select_rows", f"512 of {KEYS}", nothing(64, KEYS, dtype=F32), 512),
        _launch("select_rows", f"512 of {KEYS} in blocks of 8", nothing(64, KEYS, dtype=F32), 512,
                nothing(64, KEYS // 8, dtype=torch.bool), 8),
        _launch("candidate_blocks", "2048 blocks of 8", nothing(64, KEYS, dtype=F32),
                nothing(64, dtype=I64), 8, 2048),
        _launch("rms_norm", f"64 x {HIDDEN}", nothing(64, HIDDEN, dtype=BF16),
                nothing(HIDDEN, dtype=BF16), 1e-20, BF16),
        _launch("rms_norm", f"64 x {QUERY_RANK}", nothing(64, QUERY_RANK, dtype=BF16),
                nothing(QUERY_RANK, dtype=BF16), 1e-20, BF16),
        _launch("rotate", f"64 x {HEADS} heads", query, *turns, BF16),
        _launch("stream_mixes", f"64 x {STREAMS} x {HIDDEN}", *_mixes(64)),
        _launch("mix_streams", f"64 x {STREAMS} x {HIDDEN}", _streams(64),
                nothing(64, STREAMS, dtype=F32), BF16),
        _launch("expand_streams", f"64 x {STREAMS} x {HIDDEN}", *_expand(64)),
        _launch("route", f"{CHOICES} of {EXPERTS}", nothing(64, EXPERTS, dtype=F32),
                nothing(EXPERTS, dtype=F32), CHOICES, True, 1.5),
        _launch("clamped_swiglu", f"64 x {INNER}", nothing(64, INNER, dtype=BF16),
                nothing(64, INNER, dtype=BF16), 10.0, BF16),
        _launch("sum_experts", f"64 x {CHOICES} x {HIDDEN}", *_sum(64)),
        _launch("engram_rows", "64 tokens", *_ngrams(64), hot=False),
        _launch("load_table_rows", "64 x 24 rows", *_table(64), hot=False),
        _launch("add_memory", f"64 x {STREAMS} x {HIDDEN}", *_memory(64), hot=False),
    ]  # fmt: skip
