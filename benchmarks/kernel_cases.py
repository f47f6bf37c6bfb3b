"""What `kernels.py` measures: each operation at published and at tiny shapes.

A case rotates through copies of its weights, so that they come from memory as in a model, whose
layers follow each other. `usual` is what one would call without these kernels: torch's bfloat16
product, at few rows with weights dequantised beforehand (two bytes a value), at many rows with the
time to dequantise them, because no memory holds the published model so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import torch
import vllm_kernels
from torch import Tensor

from vllm_deepinfer.ops import formats
from vllm_deepinfer.ops import reference_linear as reference
from vllm_deepinfer.ops.experts import fp4_experts
from vllm_deepinfer.ops.linear import fp8_linear, plain_linear
from vllm_deepinfer.ops.quantise import quantise_fp8

BF16 = torch.bfloat16
COLD_BYTES = 160 << 20  # copies of weights together, beyond any cache
MANY_ROWS = 128
LIMIT = 10.0

Run = Callable[[int], object]  # of the number of the call


@dataclass(frozen=True)
class Case:
    """One operation at one shape.

    read_bytes: weights as stored, with their scales, or rows where there are none.
    products: multiplications and additions, two each.
    peers: kernels of others, by name; see `vllm_kernels.py`.
    """

    operation: str
    shape: str
    rows: int
    read_bytes: int
    products: int
    run: Run
    reference: Run
    usual: Run | None = None
    peers: Mapping[str, Run] = field(default_factory=dict)


def copies(num_bytes: int) -> int:
    return max(1, min(COLD_BYTES // num_bytes, 64))


def fp8_weight(out: int, columns: int) -> tuple[Tensor, Tensor]:
    codes = torch.randint(0, 0x7F, (out, columns), dtype=torch.uint8)
    scale = torch.randint(115, 121, (-(-out // 32), columns // 32), dtype=torch.uint8)
    return codes.view(torch.float8_e4m3fn), scale


def fp8_layers() -> Iterator[Case]:
    """wq_a, wq_b, wo_b, shared experts; and the tiny preset's."""
    for out, columns in (
        (1280, 5120), (32768, 1280), (5120, 8192), (2304, 5120), (5120, 2304), (128, 256),
    ):  # fmt: skip
        weights = [fp8_weight(out, columns) for _ in range(copies(out * columns))]
        others = vllm_kernels.Fp8Layers(weights)
        for rows in (1, 6, 32, 256):
            yield fp8_case(weights, rows, 1, others)


def grouped_output() -> Iterator[Case]:
    weights = [fp8_weight(8 * 1024, 4096) for _ in range(copies(1 << 25))]
    for rows in (1, 256):
        yield fp8_case(weights, rows, 8)


def fp8_case(
    weights: list[tuple[Tensor, Tensor]],
    rows: int,
    groups: int,
    others: vllm_kernels.Fp8Layers | None = None,
) -> Case:
    out, columns = weights[0][0].shape
    plain = torch.randn(rows, groups * columns).to(BF16)
    x, scales = quantise_fp8(plain) if groups == 1 else (plain, None)
    wide = [formats.dequantise_fp8_blocks(*weight).to(BF16) for weight in weights[:8]]

    def usual(call: int) -> Tensor:
        if rows >= MANY_ROWS:
            matrix = formats.dequantise_fp8_blocks(*weights[call % len(weights)]).to(BF16)
        else:
            matrix = wide[call % len(wide)]
        grouped = plain.unflatten(1, (groups, columns)).transpose(0, 1)
        return torch.bmm(grouped, matrix.unflatten(0, (groups, -1)).transpose(1, 2))

    def single(call: int) -> Tensor:
        if rows >= MANY_ROWS:
            return torch.nn.functional.linear(
                plain, formats.dequantise_fp8_blocks(*weights[call % len(weights)]).to(BF16)
            )
        return torch.nn.functional.linear(plain, wide[call % len(wide)])

    return Case(
        "fp8_linear" if groups == 1 else "fp8_linear, grouped rows",
        f"{out}x{columns}",
        rows,
        weights[0][0].numel() + weights[0][1].numel(),
        rows * out * columns,
        lambda call: fp8_linear(x, scales, *weights[call % len(weights)], BF16, groups),
        lambda call: reference.fp8_linear(x, scales, *weights[call % len(weights)], BF16, groups),
        single if groups == 1 else usual,
        others.runs(plain, x) if others else {},
    )


def plain_layers() -> Iterator[Case]:
    """The router, a quarter of the output head, and the tiny preset's head."""
    for out, columns in ((384, 5120), (32320, 5120), (512, 256)):
        weights = [
            torch.randn(out, columns).to(BF16) for _ in range(min(copies(2 * out * columns), 8))
        ]
        for rows in (1, 32):
            x = torch.randn(rows, columns).to(BF16)
            yield Case(
                "plain_linear",
                f"{out}x{columns}",
                rows,
                2 * out * columns,
                rows * out * columns,
                lambda call, x=x, w=weights: plain_linear(x, w[call % len(w)]),
                lambda call, x=x, w=weights: reference.plain_linear(x, w[call % len(w)]),
                lambda call, x=x, w=weights: torch.nn.functional.linear(x, w[call % len(w)]),
            )


def expert_stacks(experts: int, hidden: int, inter: int) -> list[Tensor]:
    stacks = []
    for out, columns in ((inter, hidden), (inter, hidden), (hidden, inter)):
        stacks.append(torch.randint(-128, 128, (experts, out, columns // 2), dtype=torch.int8))
        stacks.append(torch.randint(116, 121, (experts, out, columns // 32), dtype=torch.uint8))
    return stacks


def routed_experts() -> Iterator[Case]:
    """Eight experts of the published size, one or two a token; the tiny preset's, two of eight."""
    for hidden, inter, shapes in (
        (5120, 2304, ((1, 1), (6, 1), (32, 2), (256, 2))), (256, 128, ((1, 2), (32, 2))),
    ):  # fmt: skip
        stacks = expert_stacks(8, hidden, inter)
        others = vllm_kernels.Fp4Experts(stacks)
        for rows, per_token in shapes:
            yield expert_case(stacks, rows, per_token, others)


def expert_case(
    stacks: list[Tensor], rows: int, per_token: int, others: vllm_kernels.Fp4Experts
) -> Case:
    inter, hidden = stacks[0].shape[1], 2 * stacks[0].shape[2]
    plain = torch.randn(rows, hidden).to(BF16)
    x, scales = quantise_fp8(plain)
    offsets = torch.randint(8, (rows, 1)) + torch.arange(per_token)
    weights = torch.rand(rows, per_token)

    def arguments(call: int) -> tuple:
        return (x, scales, (offsets + call) % 8, weights, *stacks, 0, LIMIT, BF16)

    wide = [
        formats.dequantise_fp4_rows(stacks[i][:2], stacks[i + 1][:2]).to(BF16) for i in (0, 2, 4)
    ]

    def usual(call: int) -> None:
        """The same number of products, over two experts' bfloat16 weights."""
        for expert in offsets.remainder(8).unique().tolist():
            part = plain[: int((offsets % 8 == expert).sum())]
            if rows >= MANY_ROWS:
                w1, w3, w2 = (
                    formats.dequantise_fp4_rows(stacks[i][expert], stacks[i + 1][expert]).to(BF16)
                    for i in (0, 2, 4)
                )
            else:
                w1, w3, w2 = (matrix[(expert + call) % 2] for matrix in wide)
            linear = torch.nn.functional.linear
            linear(torch.nn.functional.silu(linear(part, w1)) * linear(part, w3), w2)

    used = len(offsets.remainder(8).unique())
    return Case(
        "fp4_experts",
        f"{hidden}x{inter}, {per_token} of 8",
        rows,
        used * sum(stack[0].numel() for stack in stacks),
        rows * per_token * 3 * hidden * inter,
        lambda call: fp4_experts(*arguments(call)),
        lambda call: reference.fp4_experts(*arguments(call)),
        usual,
        others.runs(plain, offsets, weights),
    )


def quantiser() -> Iterator[Case]:
    for rows, columns in ((1, 5120), (256, 5120), (1, 256)):
        x = torch.randn(rows, columns).to(BF16)
        yield Case(
            "quantise_fp8",
            str(columns),
            rows,
            3 * x.numel(),
            0,
            lambda call, x=x: quantise_fp8(x),
            lambda call, x=x: reference.quantise_fp8(x),
        )


OPERATIONS: list[Callable[[], Iterator[Case]]] = [
    quantiser,
    fp8_layers,
    grouped_output,
    plain_layers,
    routed_experts,
]
