"""Weights kept as they are stored in the checkpoint, and the linear layers that use them.

Parameters have the checkpoint's dtype and shape. To be multiplied on a CPU they are dequantised to
float32; a ``WorkingCopies`` budget decides which layers keep that copy between steps.
Source: V4.1 specification, sections 2.4 and 6.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from vllm_deepinfer.ops import formats
from vllm_deepinfer.ops.numerics import Numerics
from vllm_deepinfer.ops.reference import rms_norm

E4M3 = torch.float8_e4m3fn
E8M0 = torch.float8_e8m0fnu


def parameter(*shape: int, dtype: torch.dtype = torch.bfloat16) -> nn.Parameter:
    return nn.Parameter(torch.zeros(*shape, dtype=dtype), requires_grad=False)


@dataclass
class WorkingCopies:
    """Memory that dequantised copies of weights may take, and what they took."""

    limit_bytes: int
    used_bytes: int = 0
    not_kept: list[str] = field(default_factory=list)

    def admit(self, name: str, num_bytes: int) -> bool:
        if self.used_bytes + num_bytes > self.limit_bytes:
            self.not_kept.append(name)
            return False
        self.used_bytes += num_bytes
        return True


class StoredWeight(nn.Module, ABC):
    """A weight in its stored format; ``values()`` is its float32 content."""

    def __init__(self) -> None:
        super().__init__()
        self._copy: Tensor | None = None

    @property
    @abstractmethod
    def num_values(self) -> int: ...

    @abstractmethod
    def dequantise(self) -> Tensor: ...

    def values(self) -> Tensor:
        return self.dequantise() if self._copy is None else self._copy

    def keep_working_copy(self, name: str, copies: WorkingCopies) -> None:
        if copies.admit(name, 4 * self.num_values):
            self._copy = self.dequantise()


class PlainLinear(StoredWeight):
    """bfloat16 weight ``[out, in]``; products and sums in float32."""

    def __init__(self, columns: int, rows: int) -> None:
        super().__init__()
        self.weight = parameter(rows, columns)

    @property
    def num_values(self) -> int:
        return self.weight.numel()

    def dequantise(self) -> Tensor:
        return self.weight.to(torch.float32)

    def forward(self, x: Tensor) -> Tensor:
        """``[T, in]`` of any dtype to float32 ``[T, out]``, not yet stored."""
        return torch.nn.functional.linear(x.to(torch.float32), self.values())


class Fp8Linear(StoredWeight):
    """e4m3 weight ``[out, in]`` with one UE8M0 scale per 32x32 block."""

    def __init__(self, columns: int, rows: int, numerics: Numerics) -> None:
        super().__init__()
        self.numerics = numerics
        self.weight = parameter(rows, columns, dtype=E4M3)
        block = formats.FP8_BLOCK
        self.scale = parameter(-(-rows // block), -(-columns // block), dtype=E8M0)

    @property
    def num_values(self) -> int:
        return self.weight.numel()

    def dequantise(self) -> Tensor:
        return formats.dequantise_fp8_blocks(self.weight, self.scale)

    def forward(self, activation: Tensor) -> Tensor:
        """``Numerics.activation`` output ``[T, in]`` to the stored product ``[T, out]``."""
        return self.numerics.store(torch.nn.functional.linear(activation, self.values()))


class GroupedOutput(Fp8Linear):
    """First half of the output projection: each group of heads has its own rows.

    The input is not quantised; the weight's stored values are used as they are.
    """

    def __init__(self, columns: int, rank: int, groups: int, numerics: Numerics) -> None:
        super().__init__(columns, groups * rank, numerics)
        self.groups = groups

    def forward(self, heads: Tensor) -> Tensor:
        """``[T, H, head_dim]`` to the stored ``[T, groups * rank]``."""
        grouped = heads.to(torch.float32).reshape(heads.shape[0], self.groups, -1)
        weight = self.values().view(self.groups, -1, grouped.shape[-1])
        product = torch.bmm(grouped.transpose(0, 1), weight.transpose(1, 2))
        return self.numerics.store(product.transpose(0, 1).flatten(1))


class Fp4Stack(StoredWeight):
    """Packed e2m1 weights ``[experts, out, in / 2]`` with a UE8M0 scale per row and 32 columns."""

    def __init__(self, experts: int, columns: int, rows: int) -> None:
        super().__init__()
        self.weight = parameter(experts, rows, columns // 2, dtype=torch.int8)
        self.scale = parameter(experts, rows, columns // formats.FP4_GROUP, dtype=E8M0)

    @property
    def num_values(self) -> int:
        return 2 * self.weight.numel()

    def dequantise(self) -> Tensor:
        return formats.dequantise_fp4_rows(self.weight, self.scale)

    def expert(self, index: int) -> Tensor:
        """Float32 ``[out, in]`` of one expert."""
        if self._copy is not None:
            return self._copy[index]
        return formats.dequantise_fp4_rows(self.weight[index], self.scale[index])


class RmsNorm(nn.Module):
    """Root-mean-square normalisation with a bfloat16 weight (section 2.3)."""

    def __init__(self, size: int, eps: float, numerics: Numerics) -> None:
        super().__init__()
        self.weight = parameter(size)
        self.eps = eps
        self.numerics = numerics

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps, self.numerics)
