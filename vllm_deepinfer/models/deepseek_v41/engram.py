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
from vllm_deepinfer.ops.engram import add_memory, engram_rows, load_table_rows
from vllm_deepinfer.ops.numerics import Numerics


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

    def to(self, device: torch.device) -> EngramConstants:
        return EngramConstants(
            self.token_map.to(device),
            self.pad_id,
            self.multipliers.to(device),
            self.primes.to(device),
            self.offsets.to(device),
        )


class EngramTable(nn.Module):
    """e4m3 rows with one UE8M0 scale per 32 columns."""

    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.weight = parameter(rows, width, dtype=E4M3)
        self.scale = parameter(rows, width // formats.FP8_GROUP, dtype=E8M0)

    def forward(self, rows: Tensor, dtype: torch.dtype) -> Tensor:
        """Rows ``[T, columns]`` side by side, ``[T, columns * width]``."""
        return load_table_rows(self.weight, self.scale, rows, dtype)


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
        constants = self.constants
        rows = engram_rows(
            step.ngram_token_ids,
            constants.token_map,
            constants.pad_id,
            constants.multipliers,
            constants.primes,
            constants.offsets,
        )
        if step.probe is not None:
            step.probe.note(Quantity.ENGRAM_ROWS, self.layer, rows)
        memory = self.wkv(self.numerics.activation(self.embed(rows, self.numerics.dtype)))
        return add_memory(streams, memory, self.q_weight, self.k_weight, self.config.rms_norm_eps)
