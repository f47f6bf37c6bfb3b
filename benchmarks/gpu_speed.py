"""Times of the matrix kernels on a GPU, for ``gpu_parts.py``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from vllm_deepinfer.ops.experts import fp4_experts
from vllm_deepinfer.ops.linear import fp8_linear, plain_linear
from vllm_deepinfer.ops.quantise import quantise_fp8

BF16 = torch.bfloat16
HIDDEN, INTER, NUM_EXPERTS, LIMIT = 5120, 2304, 8, 10.0
ROWS = (1, 6, 32, 256)
_ROW = "{:<12} {:<16} {:>5} {:>10} {:>10} {:>12} {:>10}"


def measure_all(device: str = "cuda") -> list[str]:
    """A heading and a line for each kernel, shape and number of rows."""
    from vllm_deepinfer.ops import triton

    if device == "cuda":
        triton.register()
    lines = [_ROW.format("operation", "shape", "rows", "us", "GB/s", "bf16 mm, us", "TFLOP/s")]
    with torch.device(device):
        for rows in ROWS:
            for operation, shape, run, num_bytes, products, usual in cases(rows):
                ours_s, usual_s = seconds(run), seconds(usual)
                lines.append(
                    _ROW.format(
                        operation,
                        shape,
                        rows,
                        f"{1e6 * ours_s:.1f}",
                        f"{num_bytes / ours_s / 1e9:.0f}",
                        f"{1e6 * usual_s:.1f}",
                        f"{2 * products / ours_s / 1e12:.1f}",
                    )
                )
    return lines


Timed = tuple[str, str, Callable[[], Any], int, int, Callable[[], Any]]


def cases(rows: int) -> list[Timed]:
    """Name, shape, run, bytes of weights read, products, and torch's product of this shape."""
    x = torch.randn(rows, HIDDEN).to(BF16)
    quantised, scales = quantise_fp8(x)
    wide = torch.randn(INTER, HIDDEN).to(BF16)
    weight = torch.randint(0, 0x7F, (INTER, HIDDEN), dtype=torch.uint8).view(torch.float8_e4m3fn)
    weight_scale = torch.randint(115, 121, (INTER // 32, HIDDEN // 32), dtype=torch.uint8)
    stacks = expert_stacks()
    experts = torch.arange(rows).unsqueeze(1) % NUM_EXPERTS
    chances = torch.rand(rows, 1)
    used = min(rows, NUM_EXPERTS) * sum(stack[0].numel() for stack in stacks)

    def usual() -> Tensor:
        return torch.nn.functional.linear(x, wide)

    shape = f"{INTER}x{HIDDEN}"
    return [
        (
            "fp8_linear",
            shape,
            lambda: fp8_linear(quantised, scales, weight, weight_scale, BF16, 1),
            weight.numel() + weight_scale.numel(),
            rows * INTER * HIDDEN,
            usual,
        ),
        (
            "plain_linear",
            shape,
            lambda: plain_linear(x, wide),
            2 * wide.numel(),
            rows * INTER * HIDDEN,
            usual,
        ),
        (
            "fp4_experts",
            f"3x {shape}",
            lambda: fp4_experts(quantised, scales, experts, chances, *stacks, 0, LIMIT, BF16),
            used,
            3 * rows * INTER * HIDDEN,
            usual,
        ),
    ]


def expert_stacks() -> list[Tensor]:
    stacks = []
    for out, columns in ((INTER, HIDDEN), (INTER, HIDDEN), (HIDDEN, INTER)):
        codes = torch.randint(-128, 128, (NUM_EXPERTS, out, columns // 2), dtype=torch.int8)
        stacks.append(codes)
        scale = torch.randint(116, 121, (NUM_EXPERTS, out, columns // 32), dtype=torch.uint8)
        stacks.append(scale)
    return stacks


def seconds(run: Callable[[], Any]) -> float:
    """Of one call: the median of Triton's timer, which clears the caches between calls."""
    from triton.testing import do_bench

    return float(do_bench(run, warmup=10, rep=40, return_mode="median")) / 1e3
