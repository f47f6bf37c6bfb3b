"""Engram: a memory of hashed n-grams, added to the streams (section 3)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vllm_deepinfer.models.deepseek_v41.config import V41Config
from vllm_deepinfer.models.deepseek_v41.stored_weights import E4M3, E8M0, Fp8Linear, parameter
from vllm_deepinfer.ops import formats
from vllm_deepinfer.ops.engram import add_memory, engram_rows, load_table_rows, take_held_rows
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
    """e4m3 rows with one UE8M0 scale per 32 columns: those ``held`` here, of a whole table."""

    def __init__(self, held: range, width: int) -> None:
        super().__init__()
        self.held = held
        self.weight = parameter(len(held), width, dtype=E4M3)
        self.scale = parameter(len(held), width // formats.FP8_GROUP, dtype=E8M0)

    def take_held(self, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """Bytes of rows ``[T, columns]`` of the whole table; zero where not held here."""
        return take_held_rows(self.weight, self.scale, numbers, self.held.start)


@dataclass(frozen=True)
class TableRows:
    """Rows ``numbers``, int64 ``[T, columns]``, of a table ``weight`` with its ``scale``.

    The table is the layer's own or, where that is spread over ranks, what came from them.
    """

    weight: Tensor
    scale: Tensor
    numbers: Tensor


class Engram(nn.Module):
    """``held`` are the rows of the table that are on this rank."""

    def __init__(self, config: V41Config, layer: int, held: range, numerics: Numerics) -> None:
        super().__init__()
        self.config, self.layer, self.numerics = config, layer, numerics
        self.embed = EngramTable(held, config.engram_head_dim)
        self.q_weight = parameter(config.hc_mult, config.hidden_size)
        self.k_weight = parameter(config.hc_mult, config.hidden_size)
        width = config.engram_columns * config.engram_head_dim
        self.wkv = Fp8Linear(width, (config.hc_mult + 1) * config.hidden_size, numerics)
        self.constants: EngramConstants | None = None

    def row_numbers(self, ngrams: Tensor) -> Tensor:
        """Rows of the whole table, int64 ``[T, columns]``, of n-grams ``[T, n]``, newest first."""
        if self.constants is None:
            raise RuntimeError(
                f"engram layer {self.layer} has no hash constants; they are set from the "
                "checkpoint's tokenizer.json after loading."
            )
        constants = self.constants
        return engram_rows(
            ngrams,
            constants.token_map,
            constants.pad_id,
            constants.multipliers,
            constants.primes,
            constants.offsets,
        )

    def forward(self, streams: Tensor, found: TableRows) -> Tensor:
        """Add the gated memory of the tokens' rows to streams ``[T, S, D]``."""
        rows = load_table_rows(found.weight, found.scale, found.numbers, self.numerics.dtype)
        memory = self.wkv(self.numerics.activation(rows))
        return add_memory(streams, memory, self.q_weight, self.k_weight, self.config.rms_norm_eps)
