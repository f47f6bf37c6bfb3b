"""How the model computes: storage precision, and quantisers on or off.

Sums and products are taken in float32 everywhere; ``Numerics`` decides where values are rounded
to the storage type and where they pass a quantiser. Source: V4.1 specification, sections 2 and 2.4.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vllm_deepinfer.ops.quantise import quantise_fp8
from vllm_deepinfer.ops.records import Fp4FineRecord, Fp4Record, Fp8Record, PlainRecord, Record


@dataclass(frozen=True)
class Activation:
    """Input ``[T, n]`` of FP8 and FP4 layers, which many layers share.

    Attributes:
        rows: e4m3 codes with ``scales``, or plain values without.
        scales: UE8M0 bytes ``[T, n/32]``, uint8.
    """

    rows: Tensor
    scales: Tensor | None = None

    def __getitem__(self, tokens: slice | Tensor) -> Activation:
        """Those of some tokens."""
        scales = None if self.scales is None else self.scales[tokens]
        return Activation(self.rows[tokens], scales)

    def tensors(self) -> list[Tensor]:
        return [self.rows] if self.scales is None else [self.rows, self.scales]


@dataclass(frozen=True)
class Numerics:
    """Arithmetic of one model instance.

    Attributes:
        dtype: storage type of activations, bfloat16 (as published) or float32.
        quantised: apply the activation and cache quantisers; off is the debug mode in which the
            same graph runs on dequantised weights.
    """

    dtype: torch.dtype = torch.bfloat16
    quantised: bool = True

    def store(self, x: Tensor) -> Tensor:
        """Round to the storage type."""
        return x.to(self.dtype)

    def rounded(self, x: Tensor) -> Tensor:
        """Round to the storage type but continue in float32."""
        return x.to(self.dtype).to(torch.float32)

    def activation(self, x: Tensor) -> Activation:
        """Input of FP8 and FP4 layers: ``[T, n]`` quantised per token and 32 columns."""
        return Activation(*quantise_fp8(x)) if self.quantised else Activation(x)

    def window_record(self, width: int) -> Record:
        return Fp8Record(width) if self.quantised else PlainRecord(width, self.dtype)

    def compressed_record(self, width: int) -> Record:
        return Fp4FineRecord(width) if self.quantised else PlainRecord(width, self.dtype)

    def index_key_record(self, width: int) -> Record:
        return Fp4Record(width) if self.quantised else PlainRecord(width, self.dtype)
