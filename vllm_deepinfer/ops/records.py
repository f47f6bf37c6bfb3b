"""KV-cache records: how one row of a cache is stored as bytes.

A record is the row's values followed by its scales. The model keeps records with a ``RecordKind``:
quantised ones as the reference engine's (window 528, compressed 288, index key 68 bytes at the
published head sizes; MXFP8 index keys are ``Fp8Record(128)``, 132 bytes), plain ones in the
unquantised debug mode. The others are those of other engines, to read and write their caches:
``FloatScaleRecord`` (132 bytes, too: the size alone does not tell them apart) and
``PlainTailRecord`` (584 bytes). Source: V4.1 specification, section 5.

``page_of`` lays rows out as engines do that keep the scales of a page behind all of its values.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor

from vllm_deepinfer.ops import formats
from vllm_deepinfer.ops.float_scales import with_power_of_two_scales

PLAIN_TAIL_GROUP = 64


class RecordKind(IntEnum):
    """Names of the records for operations; the kernels know all but the last."""

    FP8 = 0
    FP4 = 1
    FP4_FINE = 2
    BFLOAT16 = 3
    FLOAT32 = 4


@dataclass(frozen=True)
class RowCodec(ABC):
    """Codec between float rows ``[..., width]`` and uint8 records ``[..., num_bytes]``."""

    width: int

    @property
    @abstractmethod
    def num_value_bytes(self) -> int: ...

    @property
    @abstractmethod
    def num_scale_bytes(self) -> int: ...

    @property
    def num_bytes(self) -> int:
        return self.num_value_bytes + self.num_scale_bytes

    @abstractmethod
    def encode(self, rows: Tensor) -> Tensor:
        """Round rows to the record's precision and lay them out as bytes."""

    @abstractmethod
    def decode(self, records: Tensor) -> Tensor:
        """Return the float32 values of records."""

    def _split(self, records: Tensor) -> tuple[Tensor, Tensor]:
        values, scales = records.split([self.num_value_bytes, self.num_scale_bytes], -1)
        return values.contiguous(), scales.contiguous()


class Record(RowCodec):
    """A record that the model keeps and operations know."""

    @property
    @abstractmethod
    def kind(self) -> RecordKind: ...


class Fp8Record(Record):
    """e4m3 values, one UE8M0 scale per 32: window KV."""

    kind = RecordKind.FP8

    @property
    def num_value_bytes(self) -> int:
        return self.width

    @property
    def num_scale_bytes(self) -> int:
        return self.width // formats.FP8_GROUP

    def encode(self, rows: Tensor) -> Tensor:
        code, scale = formats.quantise_fp8(rows)
        return torch.cat([code.view(torch.uint8), formats.exponent_byte(scale)], -1)

    def decode(self, records: Tensor) -> Tensor:
        values, scales = self._split(records)
        return formats.scale_groups_(formats.unpack_e4m3(values), formats.decode_ue8m0(scales))


class Fp4Record(Record):
    """Packed e2m1 values, one UE8M0 scale per 32: index keys."""

    kind = RecordKind.FP4

    @property
    def num_value_bytes(self) -> int:
        return self.width // 2

    @property
    def num_scale_bytes(self) -> int:
        return self.width // formats.FP4_GROUP

    def encode(self, rows: Tensor) -> Tensor:
        packed, scale = formats.quantise_fp4(rows)
        return torch.cat([packed, formats.exponent_byte(scale)], -1)

    def decode(self, records: Tensor) -> Tensor:
        return formats.dequantise_fp4_rows(*self._split(records))


class Fp4FineRecord(Record):
    """Packed e2m1 values, one e4m3 scale per 16: compressed KV."""

    kind = RecordKind.FP4_FINE

    @property
    def num_value_bytes(self) -> int:
        return self.width // 2

    @property
    def num_scale_bytes(self) -> int:
        return self.width // formats.FP4_FINE_GROUP

    def encode(self, rows: Tensor) -> Tensor:
        packed, scale = formats.quantise_fp4_fine(rows)
        return torch.cat([packed, scale.to(torch.float8_e4m3fn).view(torch.uint8)], -1)

    def decode(self, records: Tensor) -> Tensor:
        packed, scales = self._split(records)
        factor = scales.view(torch.float8_e4m3fn).to(torch.float32)
        return formats.scale_groups_(formats.unpack_e2m1(packed), factor)


@dataclass(frozen=True)
class PlainRecord(Record):
    """Unquantised values in the model's own dtype."""

    dtype: torch.dtype

    @property
    def kind(self) -> RecordKind:
        return RecordKind.BFLOAT16 if self.dtype == torch.bfloat16 else RecordKind.FLOAT32

    @property
    def num_value_bytes(self) -> int:
        return self.width * self.dtype.itemsize

    @property
    def num_scale_bytes(self) -> int:
        return 0

    def encode(self, rows: Tensor) -> Tensor:
        return rows.to(self.dtype).clone(memory_format=torch.contiguous_format).view(torch.uint8)

    def decode(self, records: Tensor) -> Tensor:
        return records.contiguous().view(self.dtype).to(torch.float32)


class FloatScaleRecord(RowCodec):
    """e4m3 values, one float32 scale a row: FP8 index keys of vLLM and others.

    The scale is the largest magnitude over 448, of any value; codes round ``value * (448 / amax)``,
    the published cast, which differs from a division by the scale at a few midpoints.
    """

    @property
    def num_value_bytes(self) -> int:
        return self.width

    @property
    def num_scale_bytes(self) -> int:
        return torch.float32.itemsize

    def encode(self, rows: Tensor) -> Tensor:
        rows = rows.to(torch.float32)
        amax = rows.abs().amax(-1, keepdim=True).clamp_min(formats.FP8_AMAX_FLOOR)
        # torch divides a number by a tensor in two roundings; tensors it divides in one
        code = formats.to_e4m3(rows * (torch.full_like(amax, formats.E4M3_MAX) / amax))
        scale = (amax / formats.E4M3_MAX).contiguous()
        return torch.cat([code.view(torch.uint8), scale.view(torch.uint8)], -1)

    def decode(self, records: Tensor) -> Tensor:
        values, scales = self._split(records)
        code = values.view(torch.float8_e4m3fn)
        return code.to(torch.float32) * scales.view(torch.float32)

    def to_power_of_two_scales(self, records: Tensor) -> Tensor:
        """The same rows as ``Fp8Record``s, within the bound of ``with_power_of_two_scales``."""
        values, scales = (part.flatten(0, -2) for part in self._split(records))
        code, scale = with_power_of_two_scales(
            values.view(torch.float8_e4m3fn), scales.view(torch.float32), (1, self.width)
        )
        groups = scale.view(torch.uint8).repeat_interleave(self.width // formats.FP8_GROUP, -1)
        converted = torch.cat([code.view(torch.uint8), groups], -1)
        return converted.view(*records.shape[:-1], -1)


@dataclass(frozen=True)
class PlainTailRecord(RowCodec):
    """e4m3 values with one UE8M0 scale per 64, and a tail kept in bfloat16: vLLM's ``fp8_ds_mla``.

    The tail is the part that positions rotate. The seven scales of 512 values are padded to eight
    bytes with zeros.
    """

    tail: int = 64

    @property
    def _quantised(self) -> int:
        return self.width - self.tail

    @property
    def num_value_bytes(self) -> int:
        return self._quantised + 2 * self.tail

    @property
    def num_scale_bytes(self) -> int:
        return -(-self._quantised // (8 * PLAIN_TAIL_GROUP)) * 8

    def encode(self, rows: Tensor) -> Tensor:
        values, tail = rows.split([self._quantised, self.tail], -1)
        code, scale = formats.quantise_fp8(values, PLAIN_TAIL_GROUP)
        padding = scale.new_zeros(
            *scale.shape[:-1], self.num_scale_bytes - scale.shape[-1], dtype=torch.uint8
        )
        tail = tail.to(torch.bfloat16).contiguous().view(torch.uint8)
        return torch.cat([code.view(torch.uint8), tail, formats.exponent_byte(scale), padding], -1)

    def decode(self, records: Tensor) -> Tensor:
        values, scales = self._split(records)
        code, tail = values.split([self._quantised, 2 * self.tail], -1)
        factor = formats.decode_ue8m0(scales[..., : self._quantised // PLAIN_TAIL_GROUP])
        quantised = code.contiguous().view(torch.float8_e4m3fn).to(torch.float32)
        tail = tail.contiguous().view(torch.bfloat16).to(torch.float32)
        return torch.cat([formats.scale_groups_(quantised, factor), tail], -1)


def page_of(records: Tensor, codec: RowCodec, page_bytes: int) -> Tensor:
    """Lay out ``[..., rows, num_bytes]`` as pages ``[..., page_bytes]``: values, scales, zeros."""
    values, scales = records.split([codec.num_value_bytes, codec.num_scale_bytes], -1)
    spare = page_bytes - records.shape[-2] * codec.num_bytes
    if spare < 0:
        raise ValueError(
            f"page_bytes is {page_bytes}; {records.shape[-2]} rows of {codec.num_bytes} bytes need "
            f"at least {page_bytes - spare}."
        )
    padding = records.new_zeros(*records.shape[:-2], spare)
    return torch.cat([values.flatten(-2), scales.flatten(-2), padding], -1)


def rows_of_page(page: Tensor, codec: RowCodec, num_rows: int) -> Tensor:
    """The records ``[..., rows, num_bytes]`` of pages from ``page_of``."""
    if page.shape[-1] < num_rows * codec.num_bytes:
        raise ValueError(
            f"a page of {page.shape[-1]} bytes holds no {num_rows} rows of {codec.num_bytes} bytes."
        )
    sizes = codec.num_value_bytes * num_rows, codec.num_scale_bytes * num_rows
    values, scales = page[..., : sum(sizes)].split(sizes, -1)
    parts = values.unflatten(-1, (num_rows, -1)), scales.unflatten(-1, (num_rows, -1))
    return torch.cat(parts, -1)


def record_of(kind: int, width: int) -> Record:
    """The record of a kind, for rows of ``width`` values."""
    plain = {RecordKind.BFLOAT16: torch.bfloat16, RecordKind.FLOAT32: torch.float32}
    if kind in plain:
        return PlainRecord(width, plain[RecordKind(kind)])
    quantised = {record.kind: record for record in (Fp8Record, Fp4Record, Fp4FineRecord)}
    return quantised[RecordKind(kind)](width)
