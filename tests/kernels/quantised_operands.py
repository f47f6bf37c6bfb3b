"""Random quantised operands, and how far two results are apart."""

from __future__ import annotations

import torch
from torch import Tensor

from vllm_deepinfer.ops import formats
from vllm_deepinfer.ops.quantise import quantise_fp8

FINITE_CODES = torch.tensor([code for code in range(256) if code & 0x7F != 0x7F])
LIMIT = 10.0


def relative(found: Tensor, wanted: Tensor) -> float:
    """Relative L2 error."""
    wanted = wanted.double()
    return float((found.double() - wanted).norm() / wanted.norm())


def same_bits(first: Tensor, second: Tensor) -> bool:
    return torch.equal(first.contiguous().view(torch.uint8), second.contiguous().view(torch.uint8))


def fp8_weight(rows: int, columns: int, exponents=(115, 125)) -> tuple[Tensor, Tensor]:
    """Every finite code equally likely, with a random scale per block."""
    codes = FINITE_CODES[torch.randint(len(FINITE_CODES), (rows, columns))]
    shape = (-(-rows // 32), columns // 32)
    scale = torch.randint(exponents[0], exponents[1] + 1, shape, dtype=torch.uint8)
    return codes.to(torch.uint8).view(torch.float8_e4m3fn), scale


def fp4_stack(experts: int, rows: int, columns: int) -> tuple[Tensor, Tensor]:
    packed = torch.randint(-128, 128, (experts, rows, columns // 2), dtype=torch.int8)
    scale = torch.randint(118, 123, (experts, rows, columns // 32), dtype=torch.uint8)
    return packed, scale


def activations(rows: int, columns: int, kind: str) -> tuple[Tensor, Tensor | None]:
    """Rows as ``codes`` with scales, or plain ``bfloat16`` or ``float32`` ones."""
    x = torch.randn(rows, columns)
    if kind == "codes":
        return quantise_fp8(x.to(torch.bfloat16))
    return x.to(getattr(torch, kind)), None


def expert_arguments(
    tokens: int, kind: str, dtype: torch.dtype, held: int = 6, first: int = 1, per_token: int = 3
) -> tuple:
    """Arguments of ``fp4_experts``; of eight experts, ``held`` are here."""
    hidden, inter = 160, 96
    weights = [
        tensor
        for shape in ((inter, hidden), (inter, hidden), (hidden, inter))
        for tensor in fp4_stack(held, *shape)
    ]
    chosen = torch.stack([torch.randperm(8)[:per_token] for _ in range(tokens)])
    x, scales = activations(tokens, hidden, kind)
    return (x, scales, chosen, torch.rand(tokens, per_token), *weights, first, LIMIT, dtype)


def exact_product(x: Tensor, scales: Tensor | None, weight: Tensor, scale: Tensor) -> Tensor:
    """``x @ weight.T`` in float64."""
    rows = x.double() if scales is None else formats.dequantise_fp8_rows(x, scales).double()
    return rows @ formats.dequantise_fp8_blocks(weight, scale).double().T
