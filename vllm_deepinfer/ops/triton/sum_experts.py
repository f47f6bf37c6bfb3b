"""The sum of a token's expert outputs, in the order of expert numbers."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from vllm_deepinfer.ops import router

COLUMNS_PER_PROGRAM = 1024


@triton.jit
def sum_experts_kernel(
    outputs, chosen, shared, out, columns, count: tl.constexpr, slots: tl.constexpr,
    tile: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * tile + tl.arange(0, tile)
    held = column < columns
    slot = tl.arange(0, slots)
    # Slots beyond the choices come last.
    number = tl.load(chosen + token * count + slot, mask=slot < count, other=0x7FFFFFFFFFFFFFFF)
    before = number[None, :] < number[:, None]
    before |= (number[None, :] == number[:, None]) & (slot[None, :] < slot[:, None])
    rank = tl.sum(before.to(tl.int32), axis=1)
    total = tl.zeros((tile,), tl.float32)
    for place in tl.static_range(count):
        ranked = tl.sum(tl.where(rank == place, slot, 0), axis=0)
        position = outputs + (token * count + ranked) * columns + column
        total += tl.load(position, mask=held, other=0.0).to(tl.float32)
    total += tl.load(shared + token * columns + column, mask=held, other=0.0).to(tl.float32)
    tl.store(out + token * columns + column, total.to(out.dtype.element_ty), mask=held)


def sum_experts(outputs: Tensor, chosen: Tensor, shared: Tensor, dtype: torch.dtype) -> Tensor:
    """Sum of outputs ``[T, k, D]`` by ascending number, and of the shared expert's ``[T, D]``."""
    out = router._sum_fake(outputs, chosen, shared, dtype)
    tokens, columns = shared.shape
    if out.numel():
        count = chosen.shape[1]
        sum_experts_kernel[tokens, triton.cdiv(columns, COLUMNS_PER_PROGRAM)](
            outputs.contiguous(), chosen.contiguous(), shared.contiguous(), out, columns,
            count=count, slots=triton.next_power_of_2(count), tile=COLUMNS_PER_PROGRAM,
            num_warps=4, enable_fp_fusion=False,
        )  # fmt: skip
    return out
