"""The routed experts: two grouped products over e2m1 weights, and what lies between them.

Slots (a token's choices) are sorted by expert; a program takes up to ``tile_tokens`` slots of one
expert. Each slot's sums are its own, so which slots share a program changes none of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from vllm_deepinfer.ops import experts
from vllm_deepinfer.ops.triton.clamped_swiglu import clamped_silu_product
from vllm_deepinfer.ops.triton.matmul import multiply_plain, multiply_scaled
from vllm_deepinfer.ops.triton.number_formats import quantise_fp8_groups
from vllm_deepinfer.ops.triton.tiles import expert_tiles, plain_tiles


@triton.jit
def _slots_of_program(order, starts, block_ends, expert, tile_tokens: tl.constexpr):
    """Slots ``[tile_tokens]``, int64, that program 0 of axis 0 takes, and which of them are any."""
    first_block = tl.load(block_ends + expert - 1, mask=expert > 0, other=0)
    position = tl.load(starts + expert) + (tl.program_id(0) - first_block) * tile_tokens
    position += tl.arange(0, tile_tokens)
    held = position < tl.load(starts + expert + 1)
    return tl.load(order + position, mask=held, other=0), held


@triton.jit
def _multiply(
    weight,
    weight_scales,
    row,
    held_rows,
    rows,
    row_scales,
    row_number,
    held_tokens,
    columns,
    scaled: tl.constexpr,
    tile_rows: tl.constexpr,
    tile_tokens: tl.constexpr,
    tile_columns: tl.constexpr,
):
    """Weight rows ``row`` times activation rows ``row_number``, float32."""
    weight_rows = weight + row * (columns // 2)
    weight_row_scales = weight_scales + row * (columns // 32)
    token_rows = rows + row_number * columns
    if scaled:
        total = multiply_scaled(
            weight_rows, weight_row_scales, held_rows, token_rows,
            row_scales + row_number * (columns // 32), held_tokens, columns,
            "e2m1", tile_rows, tile_tokens, tile_columns,
        )  # fmt: skip
    else:
        total = multiply_plain(
            weight_rows, weight_row_scales, held_rows, token_rows, held_tokens, columns,
            "e2m1", tile_rows, tile_tokens, tile_columns,
        )  # fmt: skip
    return total


@triton.jit
def fp4_experts_inner_kernel(
    x,
    scales,
    weights,
    w1,
    w1_scale,
    w3,
    w3_scale,
    inner,
    inner_scales,
    order,
    starts,
    block_ends,
    block_experts,
    num_experts,
    choices,
    inter,
    hidden,
    limit,
    dtype: tl.constexpr,
    scaled: tl.constexpr,
    tile_rows: tl.constexpr,
    tile_tokens: tl.constexpr,
    tile_columns: tl.constexpr,
):
    """Gate, up, clamped SwiGLU, the router's weight and the second quantisation."""
    expert = tl.load(block_experts + tl.program_id(0))
    if expert < num_experts:
        slot, held_slots = _slots_of_program(order, starts, block_ends, expert, tile_tokens)
        in_expert = tl.program_id(1) * tile_rows + tl.arange(0, tile_rows)
        held_rows = in_expert < inter
        row = expert * inter + in_expert
        gate = _multiply(
            w1, w1_scale, row, held_rows, x, scales, slot // choices, held_slots, hidden,
            scaled, tile_rows, tile_tokens, tile_columns,
        )  # fmt: skip
        up = _multiply(
            w3, w3_scale, row, held_rows, x, scales, slot // choices, held_slots, hidden,
            scaled, tile_rows, tile_tokens, tile_columns,
        )  # fmt: skip
        gate, up = gate.to(dtype).to(tl.float32), up.to(dtype).to(tl.float32)
        routed = tl.load(weights + slot, mask=held_slots, other=0.0)
        product = clamped_silu_product(gate, up, limit) * routed[None, :]
        values = tl.trans(product.to(dtype))
        position = slot[:, None] * inter + in_expert[None, :]
        held = held_slots[:, None] & held_rows[None, :]
        if scaled:
            groups: tl.constexpr = tile_rows // 32
            grouped = tl.reshape(values.to(tl.float32), (tile_tokens, groups, 32))
            codes, byte = quantise_fp8_groups(grouped)
            codes = tl.reshape(codes, (tile_tokens, tile_rows)).to(tl.uint8, bitcast=True)
            tl.store(inner + position, codes, mask=held)
            group = tl.program_id(1) * groups + tl.arange(0, groups)
            tl.store(
                inner_scales + slot[:, None] * (inter // 32) + group[None, :],
                byte.to(tl.uint8),
                mask=held_slots[:, None] & (group < inter // 32)[None, :],
            )
        else:
            tl.store(inner + position, values, mask=held)


@triton.jit
def fp4_experts_outer_kernel(
    inner,
    inner_scales,
    w2,
    w2_scale,
    out,
    order,
    starts,
    block_ends,
    block_experts,
    num_experts,
    inter,
    hidden,
    scaled: tl.constexpr,
    tile_rows: tl.constexpr,
    tile_tokens: tl.constexpr,
    tile_columns: tl.constexpr,
):
    """The down projection, one row a slot."""
    expert = tl.load(block_experts + tl.program_id(0))
    if expert < num_experts:
        slot, held_slots = _slots_of_program(order, starts, block_ends, expert, tile_tokens)
        in_expert = tl.program_id(1) * tile_rows + tl.arange(0, tile_rows)
        held_rows = in_expert < hidden
        total = _multiply(
            w2, w2_scale, expert * hidden + in_expert, held_rows, inner, inner_scales, slot,
            held_slots, inter, scaled, tile_rows, tile_tokens, tile_columns,
        )  # fmt: skip
        position = out + slot[None, :] * hidden + in_expert[:, None]
        held = held_rows[:, None] & held_slots[None, :]
        tl.store(position, total.to(out.dtype.element_ty), mask=held)


@dataclass(frozen=True)
class Blocks:
    """Slots by expert, in blocks of one expert's; all int64, made on the device without waiting.

    Attributes:
        order: ``[slots]``, slots sorted by expert, those of experts not held last.
        starts: ``[experts + 1]``, where an expert's slots begin in ``order``.
        ends: ``[experts]``, the block after an expert's last.
        experts: ``[most blocks]``, each block's expert; ``experts`` itself for blocks not needed.
    """

    order: Tensor
    starts: Tensor
    ends: Tensor
    experts: Tensor

    @classmethod
    def of(cls, chosen: Tensor, first_expert: int, num_experts: int, size: int) -> Blocks:
        local = chosen.flatten() - first_expert
        local = torch.where((local >= 0) & (local < num_experts), local, num_experts)
        order = torch.sort(local, stable=True).indices
        counts = torch.zeros(num_experts + 1, dtype=torch.int64, device=chosen.device)
        counts = counts.scatter_add(0, local, torch.ones_like(local))[:num_experts]
        starts = torch.nn.functional.pad(counts.cumsum(0), (1, 0))
        ends = ((counts + size - 1) // size).cumsum(0)
        slots = local.numel()
        # Every expert may end in one block that is not full.
        most = slots // size + min(num_experts, slots)
        numbers = torch.arange(most, device=chosen.device)
        return cls(order, starts, ends, torch.searchsorted(ends, numbers, right=True))

    def arguments(self) -> tuple[Tensor, ...]:
        return self.order, self.starts, self.ends, self.experts


def fp4_experts(
    x: Tensor,
    scales: Tensor | None,
    chosen: Tensor,
    weights: Tensor,
    w1: Tensor,
    w1_scale: Tensor,
    w3: Tensor,
    w3_scale: Tensor,
    w2: Tensor,
    w2_scale: Tensor,
    first_expert: int,
    limit: float,
    dtype: torch.dtype,
) -> Tensor:
    """Outputs ``[T, k, D]`` of each token's chosen experts; zero where one is not held."""
    out = experts._fake(
        x, scales, chosen, weights, w1, w1_scale, w3, w3_scale, w2, w2_scale, first_expert, limit,
        dtype,
    ).zero_()  # fmt: skip
    num_experts, inter, hidden = w1.shape[0], w1.shape[1], w2.shape[1]
    slots, scaled = chosen.numel(), scales is not None
    if not slots:
        return out
    per_expert = triton.cdiv(slots, num_experts)
    tiles = expert_tiles(per_expert) if scaled else plain_tiles(per_expert, wide=True)
    blocks = Blocks.of(chosen, first_expert, num_experts, tiles.tokens)
    x, stored = x.contiguous(), torch.uint8 if scaled else dtype
    x, scales = (x.view(torch.uint8), scales.contiguous()) if scaled else (x, None)
    inner = x.new_empty(slots, inter, dtype=stored)
    inner_scales = x.new_empty(slots, inter // 32, dtype=torch.uint8) if scaled else None
    stacks = [w.view(torch.uint8) for w in (w1, w1_scale, w3, w3_scale, w2, w2_scale)]
    most = blocks.experts.numel()
    fp4_experts_inner_kernel[most, triton.cdiv(inter, tiles.rows)](
        x, scales, weights.contiguous(), *stacks[:4], inner, inner_scales, *blocks.arguments(),
        num_experts, chosen.shape[1], inter, hidden, limit,
        dtype=_TRITON_DTYPES[dtype], scaled=scaled, **tiles.launch_options(),
    )  # fmt: skip
    fp4_experts_outer_kernel[most, triton.cdiv(hidden, tiles.rows)](
        inner, inner_scales, *stacks[4:], out, *blocks.arguments(), num_experts, inter, hidden,
        scaled=scaled, **tiles.launch_options(),
    )  # fmt: skip
    return out


_TRITON_DTYPES = {torch.bfloat16: tl.bfloat16, torch.float32: tl.float32}
