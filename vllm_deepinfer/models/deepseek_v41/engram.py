"""Engram: a memory of hashed n-grams, added to the streams (section 3)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vllm_deepinfer.models.deepseek_v41.config import V41Config
from vllm_deepinfer.models.deepseek_v41.probe import Quantity
from vllm_deepinfer.models.deepseek_v41.step import Step
from vllm_deepinfer.models.deepseek_v41.stored_weights import E4M3, E8M0, Fp8Linear, parameter
from vllm_deepinfer.ops import formats
from vllm_deepinfer.ops.numerics import Numerics
from vllm_deepinfer.ops.reference import mean_square


@dataclass(frozen=True)
class EngramConstants:
    """What the hash of one layer depends on; all int64.

    Attributes:
        token_map: ``[tokens]``, compressed id of each token id; ids beyond it are dead.
        multipliers: ``[n]``, one per n-gram offset.
        primes: ``[n - 1, heads]``, rows of each table.
        offsets: ``[n - 1, heads]``, where each table starts.
    """

    token_map: Tensor
    pad_id: int
    multipliers: Tensor
    primes: Tensor
    offsets: Tensor


def engram_rows(ngram_token_ids: Tensor, constants: EngramConstants) -> Tensor:
    """Table rows ``[T, (n - 1) * heads]`` of tokens with their predecessors ``[T, n]`` (3.3).

    A token before the start of the request or outside the map blocks itself and everything older.
    """
    tokens = constants.token_map.shape[0]
    dead = (ngram_token_ids < 0) | (ngram_token_ids >= tokens)
    blocked = dead.int().cummax(1).values.bool()
    compressed = constants.token_map[ngram_token_ids.clamp(0, tokens - 1)]
    compressed = compressed.masked_fill(blocked, constants.pad_id) * constants.multipliers
    hashed = compressed[:, 0]
    rows = []
    for offset in range(1, ngram_token_ids.shape[1]):
        hashed = hashed ^ compressed[:, offset]
        table = hashed.unsqueeze(1) % constants.primes[offset - 1]
        rows.append(table + constants.offsets[offset - 1])
    return torch.cat(rows, 1)


class EngramTable(nn.Module):
    """e4m3 rows with one UE8M0 scale per 32 columns."""

    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.weight = parameter(rows, width, dtype=E4M3)
        self.scale = parameter(rows, width // formats.FP8_GROUP, dtype=E8M0)

    def forward(self, rows: Tensor) -> Tensor:
        """Float32 ``[T, columns, width]`` of rows ``[T, columns]``."""
        code = self.weight.view(torch.uint8)[rows].view(E4M3)
        scale = self.scale.view(torch.uint8)[rows].view(E8M0)
        return formats.dequantise_fp8_rows(code, scale)


class Engram(nn.Module):
    def __init__(self, config: V41Config, layer: int, rows: int, numerics: Numerics) -> None:
        super().__init__()
        self.config, self.layer, self.numerics = config, layer, numerics
        self.embed = EngramTable(rows, config.engram_head_dim)
        self.q_weight = parameter(config.hc_mult, config.hidden_size)
        self.k_weight = parameter(config.hc_mult, config.hidden_size)
        width = config.engram_columns * config.engram_head_dim
        self.wkv = Fp8Linear(width, (config.hc_mult + 1) * config.hidden_size, numerics)
        self.constants: EngramConstants | None = None

    def forward(self, streams: Tensor, step: Step) -> Tensor:
        """Add the gated memory to streams ``[T, S, D]``."""
        if self.constants is None:
            raise RuntimeError(
                f"engram layer {self.layer} has no hash constants; they are set from the "
                "checkpoint's tokenizer.json after loading."
            )
        rows = engram_rows(step.ngram_token_ids, self.constants)
        if step.probe is not None:
            step.probe.note(Quantity.ENGRAM_ROWS, self.layer, rows)
        memory = self.numerics.store(self.embed(rows).flatten(1))
        split = [self.config.hc_mult * self.config.hidden_size, self.config.hidden_size]
        key, value = self.wkv(self.numerics.activation(memory)).split(split, -1)
        gate = self._gate(streams, key.unflatten(-1, (self.config.hc_mult, -1)))
        added = gate.unsqueeze(-1) * value.to(torch.float32).unsqueeze(1)
        return self.numerics.store(streams.to(torch.float32) + added)

    def _gate(self, streams: Tensor, key: Tensor) -> Tensor:
        """Sigmoid of the signed square root of the normalised dot product, ``[T, S]``."""
        eps, hidden = self.config.rms_norm_eps, self.config.hidden_size
        streams, key = streams.to(torch.float32), key.to(torch.float32)
        norm = torch.rsqrt(mean_square(streams) + eps) * torch.rsqrt(mean_square(key) + eps)
        weight = self.q_weight.to(torch.float32) * self.k_weight.to(torch.float32)
        dot = (streams * weight * key).sum(-1) * norm.squeeze(-1) * hidden**-0.5
        return torch.sigmoid(torch.copysign(dot.abs().clamp_min(1e-6).sqrt(), dot))
