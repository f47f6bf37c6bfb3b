"""Normalisation, rotation, the gate and the writing of cache rows (sections 2.3, 2.5, 2.10, 5)."""

from __future__ import annotations

import torch
import torch_npu
from torch import Tensor

from vllm_deepinfer.ops import caches, norm, rotation, router
from vllm_deepinfer.ops.npu import layouts
from vllm_deepinfer.ops.npu.calls.quantised import quantised_pairs
from vllm_deepinfer.ops.npu.torch_forms import store_records


def rms_norm(x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    norm._check(x, weight, dtype)
    normalised, _ = torch_npu.npu_rms_norm(x.contiguous(), weight, epsilon=eps)
    return normalised


def rotate(
    x: Tensor, cos: Tensor, sin: Tensor, dtype: torch.dtype, backwards: bool = False
) -> Tensor:
    rotation._check_rotate(x, cos, sin, dtype)
    return _turned(x, cos, -sin if backwards else sin, dtype)


def _turned(x: Tensor, cos: Tensor, sin: Tensor, dtype: torch.dtype) -> Tensor:
    """Rotate ``[T, ..., n]``: one batch of T positions; in float32, as the reference does."""
    straight, pairs = x.split([x.shape[-1] - 2 * cos.shape[1], 2 * cos.shape[1]], -1)
    heads = pairs.reshape(1, len(x), -1, pairs.shape[-1]).to(torch.float32)
    turned = torch_npu.npu_rotary_mul(
        heads, _per_column(cos), _per_column(sin), rotary_mode="interleave"
    )
    return torch.cat([straight.to(dtype), turned.to(dtype).view(pairs.shape)], -1)


def _per_column(turns: Tensor) -> Tensor:
    """``[T, pairs]`` as ``[1, T, 1, 2 * pairs]``, each value for both columns of its pair."""
    return turns.repeat_interleave(2, 1)[None, :, None]


def clamped_swiglu(gate: Tensor, up: Tensor, limit: float, dtype: torch.dtype) -> Tensor:
    router._check_swiglu(gate, up, limit, dtype)
    return torch_npu.npu_clipped_swiglu(
        torch.cat([gate, up], -1), dim=-1, alpha=1.0, limit=limit, bias=0.0, interleaved=False
    )


def store_rotated(
    cache: Tensor,
    rows: Tensor,
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    kind: int,
    dtype: torch.dtype,
) -> None:
    caches._check_store(cache, rows, x, cos, sin, kind, dtype)
    records = layouts.fp8_records(*quantised_pairs(_turned(x, cos, sin, dtype)))
    store_records(cache, rows, records)
