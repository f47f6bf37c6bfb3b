"""Attention over stored rows equals the reference's over the decoded ones.

If this fails, a token attends to a row it does not see, to another token's, or without the sink.
"""

from __future__ import annotations

import pytest
import torch
from triton_kernels.errors import relative_error

from vllm_deepinfer.ops import attention as attention_op
from vllm_deepinfer.ops import records, reference

WIDTH, HEADS = 512, 18
WINDOW, SELECTED = records.Fp8Record(WIDTH), records.Fp4FineRecord(WIDTH)


def cache_of(record: records.Record, blocks: int, per_block: int) -> torch.Tensor:
    cache = torch.zeros(blocks, per_block, record.num_bytes, dtype=torch.uint8)
    values = torch.randn(blocks * per_block, WIDTH) * 2.0
    reference.store_rows(cache, torch.arange(blocks * per_block), values, record)
    return cache


def some_rows(tokens: int, count: int, rows: int) -> torch.Tensor:
    """Rows that a token sees, with gaps; the first is always there."""
    chosen = torch.rand(tokens, rows).argsort(1)[:, :count]
    chosen[:, 1:][torch.rand(tokens, count - 1) < 0.3] = -1
    return chosen


def case(tokens: int):
    query = (torch.randn(tokens, HEADS, WIDTH) * 2).to(torch.bfloat16)
    window, selected = cache_of(WINDOW, 5, 8), cache_of(SELECTED, 12, 4)
    rows = some_rows(tokens, 9, 40), some_rows(tokens, 37, 48)
    return query, torch.randn(HEADS), window, rows[0], selected, rows[1]


def operands(query, sink, window, window_rows, selected, selected_rows, dtype) -> tuple:
    kinds = WINDOW.kind, SELECTED.kind
    sets = (window, window_rows, kinds[0], selected, selected_rows, kinds[1])
    return query, sink, WIDTH**-0.5, dtype, *sets


def run(interpreter, *arguments):
    return interpreter.run("sink_attention", *operands(*arguments))


def attention(*arguments) -> torch.Tensor:
    return attention_op._reference(*operands(*arguments, torch.float32))


@pytest.mark.parametrize("selecting", [True, False])
def test_output_equals_the_reference(interpreter, selecting):
    arguments = case(2)
    if not selecting:
        arguments = (*arguments[:4], None, None)
    wanted = attention(*arguments)
    assert relative_error(run(interpreter, *arguments, torch.float32), wanted) <= 1e-6
    assert relative_error(run(interpreter, *arguments, torch.bfloat16), wanted) <= 2e-3


def test_keys_hidden_for_whole_tiles_change_nothing(interpreter):
    query, sink, window, rows, selected, chosen = case(1)
    hidden = torch.full((1, 40), -1)
    found = run(interpreter, query, sink, window, torch.cat([hidden, rows], 1), selected,
                torch.cat([hidden, chosen], 1), torch.float32)  # fmt: skip
    assert found.isfinite().all()
    wanted = attention(query, sink, window, rows, selected, chosen)
    assert relative_error(found, wanted) <= 1e-6


def test_token_alone_has_the_bits_it_has_in_a_batch(interpreter):
    query, sink, window, rows, selected, chosen = case(3)
    batch = run(interpreter, query, sink, window, rows, selected, chosen, torch.float32)
    alone = run(interpreter, query[2:], sink, window, rows[2:], selected, chosen[2:], torch.float32)
    assert torch.equal(alone[0], batch[2])
