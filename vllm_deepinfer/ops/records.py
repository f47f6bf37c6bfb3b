"""KV-cache records: how one row of a cache is stored as bytes.

A record is the row's values followed by its scales. Quantised rows are what the reference engine
keeps (window 528, compressed 288, index key 68 bytes for the published head sizes); plain rows
serve the unquantised debug mode. Source: V4.1 specification, section 5.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor

from vllm_deepinfer.ops import formats


class RecordKind(IntEnum):
    """Names of the records for operations; the kernels know all but the last."""

    FP8 = 0
    FP4 = 1
    FP4_FINE = 2
    BFLOAT16 = 3
    FLOAT32 = 4


@dataclass(frozen=True)
class Record(ABC):
    """Codec between float rows ``[..., width]`` and uint8 records ``[..., num_bytes]``."""

    width: int

    @property
    @abstractmethod
    def kind(self) -> RecordKind: ...

    @property
    @abstractmethod
    def num_bytes(self) -> int: ...

    @abstractmethod
    def encode(self, rows: Tensor) -> Tensor:
        """Round rows to the record's precision and lay them out as bytes."""

    @abstractmethod
    def decode(self, records: Tensor) -> Tensor:
        """Return the float32 values of records."""


class Fp8Record(Record):
    """e4m3 values, one UE8M0 scale per 32: window KV."""

    kind = RecordKind.FP8

    @property
    def num_bytes(self) -> int:
        return self.width + self.width // formats.FP8_GROUP

    def encode(self, rows: Tensor) -> Tensor:
        code, scale = formats.quantise_fp8(rows)
        return torch.cat([code.view(torch.uint8), formats.exponent_byte(scale)], -1)

    def decode(self, records: Tensor) -> Tensor:
        values, scales = records.split([self.width, self.width // formats.FP8_GROUP], -1)
        factor = formats.decode_ue8m0(scales.contiguous())
        return formats.scale_groups_(formats.unpack_e4m3(values), factor)


class Fp4Record(Record):
    """Packed e2m1 values, one UE8M0 scale per 32: index keys."""

    kind = RecordKind.FP4

    @property
    def num_bytes(self) -> int:
        return self.width // 2 + self.width // formats.FP4_GROUP

    def encode(self, rows: Tensor) -> Tensor:
        packed, scale = formats.quantise_fp4(rows)
        return torch.cat([packed, formats.exponent_byte(scale)], -1)

    def decode(self, records: Tensor) -> Tensor:
        packed, scales = records.split([self.width // 2, self.width // formats.FP4_GROUP], -1)
        return formats.dequantise_fp4_rows(packed.contiguous(), scales.contiguous())


class Fp4FineRecord(Record):
    """Packed e2m1 values, one e4m3 scale per 16: compressed KV."""

    kind = RecordKind.FP4_FINE

    @property
    def num_bytes(self) -> int:
        return self.width // 2 + self.width // formats.FP4_FINE_GROUP

    def encode(self, rows: Tensor) -> Tensor:
        packed, scale = formats.quantise_fp4_fine(rows)
        return torch.cat([packed, scale.to(torch.float8_e4m3fn).view(torch.uint8)], -1)

    def decode(self, records: Tensor) -> Tensor:
        packed, scales = records.split([self.width // 2, self.width // formats.FP4_FINE_GROUP], -1)
        factor = scales.contiguous().view(torch.float8_e4m3fn).to(torch.float32)
        return formats.scale_groups_(formats.unpack_e2m1(packed.contiguous()), factor)


@dataclass(frozen=True)
class PlainRecord(Record):
    """Unquantised values in the model's own dtype."""

    dtype: torch.dtype

    @property
    def kind(self) -> RecordKind:
        return RecordKind.BFLOAT16 if self.dtype == torch.bfloat16 else RecordKind.FLOAT32

    @property
    def num_bytes(self) -> int:
        return self.width * self.dtype.itemsize

    def encode(self, rows: Tensor) -> Tensor:
        return rows.to(self.dtype).clone(memory_format=torch.contiguous_format).view(torch.uint8)

    def decode(self, records: Tensor) -> Tensor:
        return records.contiguous().view(self.dtype).to(torch.float32)


def record_of(kind: int, width: int) -> Record:
    """The record of a kind, for rows of ``width`` values."""
    plain = {RecordKind.BFLOAT16: torch.bfloat16, RecordKind.FLOAT32: torch.float32}
    if kind in plain:
        return PlainRecord(width, plain[RecordKind(kind)])
    quantised = {record.kind: record for record in (Fp8Record, Fp4Record, Fp4FineRecord)}
    return quantised[RecordKind(kind)](width)
