"""Engram rows are the reference's exactly, and so are what is read there and added.

If this fails, a token remembers another n-gram.
"""

from __future__ import annotations

import pytest
import torch
from triton_kernels.errors import relative_error, uneven

from vllm_deepinfer.ops import engram, formats


def test_rows_of_every_ngram(interpreter):
    """Starts of requests, dead tokens, and multipliers as large as the published ones."""
    tokens, size, heads = 100, 4, 8
    ngrams = torch.randint(-1, tokens + 3, (50, size))
    primes = torch.tensor([16000057, 97, 101, 16000079, 2, 3, 5, 7]).repeat(size - 1, 1)
    multipliers = torch.randint(1 << 40, (1 << 46), (size,)) * 2 + 1
    offsets = torch.randint(0, 1 << 40, (size - 1, heads))
    arguments = (ngrams, torch.randint(0, 99092, (tokens,)), 2, multipliers, primes, offsets)
    found = interpreter.run("engram_rows", *arguments)
    assert torch.equal(found, engram._rows_reference(*arguments))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_rows_of_the_table(interpreter, dtype):
    weight, scale = formats.quantise_fp8_rows(uneven(40, 96))
    arguments = (weight, scale, torch.randint(0, 40, (5, 3)), dtype)
    found = interpreter.run("load_table_rows", *arguments)
    assert torch.equal(found, engram._table_reference(*arguments))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_memory_is_gated_and_added(interpreter, dtype):
    streams, memory = torch.randn(3, 4, 528), torch.randn(3, 5 * 528)
    streams[1] = 0.0
    weights = [torch.randn(4, 528).to(torch.bfloat16) for _ in range(2)]
    arguments = (streams.to(dtype), memory.to(dtype), *weights, 1e-20)
    found = interpreter.run("add_memory", *arguments)
    bound = 1e-6 if dtype == torch.float32 else 2e-3
    assert relative_error(found, engram._memory_reference(*arguments)) <= bound
