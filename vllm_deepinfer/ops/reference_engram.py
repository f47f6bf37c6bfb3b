"""Torch reference of the engram operations (section 3 of the V4.1 specification)."""

from __future__ import annotations

import torch
from torch import Tensor

from vllm_deepinfer.ops import formats
from vllm_deepinfer.ops.reference import mean_square


def engram_rows(
    ngrams: Tensor,
    token_map: Tensor,
    pad_id: int,
    multipliers: Tensor,
    primes: Tensor,
    offsets: Tensor,
) -> Tensor:
    """Table rows ``[T, (n - 1) * heads]`` of tokens with their predecessors ``[T, n]``."""
    tokens = token_map.shape[0]
    dead = (ngrams < 0) | (ngrams >= tokens)
    blocked = dead.int().cummax(1).values.bool()
    compressed = token_map[ngrams.clamp(0, tokens - 1)]
    compressed = compressed.masked_fill(blocked, pad_id) * multipliers
    hashed = compressed[:, 0]
    rows = []
    for offset in range(1, ngrams.shape[1]):
        hashed = hashed ^ compressed[:, offset]
        rows.append(hashed.unsqueeze(1) % primes[offset - 1] + offsets[offset - 1])
    return torch.cat(rows, 1)


def load_table_rows(weight: Tensor, scale: Tensor, rows: Tensor, dtype: torch.dtype) -> Tensor:
    """Rows ``[T, columns]`` of an e4m3 table ``[rows, n]``, side by side ``[T, columns * n]``."""
    code = weight.view(torch.uint8)[rows].view(weight.dtype)
    values = formats.dequantise_fp8_rows(code, scale.view(torch.uint8)[rows])
    return values.flatten(1).to(dtype)


def add_memory(
    streams: Tensor, memory: Tensor, query_weight: Tensor, key_weight: Tensor, eps: float
) -> Tensor:
    """Streams ``[T, S, D]`` plus memory, the value of which is gated per stream.

    The gate is the sigmoid of the signed square root of the normalised product with the key.
    """
    _, count, hidden = streams.shape
    key, value = memory.to(torch.float32).split([count * hidden, hidden], -1)
    key, wide = key.unflatten(-1, (count, hidden)), streams.to(torch.float32)
    norm = torch.rsqrt(mean_square(wide) + eps) * torch.rsqrt(mean_square(key) + eps)
    weight = query_weight.to(torch.float32) * key_weight.to(torch.float32)
    dot = (wide * weight * key).sum(-1) * norm.squeeze(-1) * hidden**-0.5
    gate = torch.sigmoid(torch.copysign(dot.abs().clamp_min(1e-6).sqrt(), dot))
    return (wide + gate.unsqueeze(-1) * value.unsqueeze(1)).to(streams.dtype)
