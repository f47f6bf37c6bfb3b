"""Around the experts, as operations: the router, the gate and the sum (section 2.10)."""

from __future__ import annotations

import torch
from torch import Tensor

from vllm_deepinfer.ops import reference
from vllm_deepinfer.ops.library import cpu_kernels, define, refuse, require
from vllm_deepinfer.ops.linear import check_output_dtype
from vllm_deepinfer.ops.norm import LANES
from vllm_deepinfer.ops.quantise import ROW_DTYPES

# -- choice ---------------------------------------------------------------------------------------


def _check_route(logits: Tensor, bias: Tensor, count: int) -> None:
    if logits.dtype != torch.float32 or logits.dim() != 2:
        raise refuse("route", "logits", logits, "float32 [T, experts]")
    experts = logits.shape[1]
    require("route", "bias", bias, (torch.float32,), (experts,))
    if not 1 <= count <= experts:
        raise refuse("route", "count", count, f"1 to {experts}, the experts")


def _route_reference(logits, bias, count, normalise, factor):
    _check_route(logits, bias, count)
    return reference.route(logits, bias, count, normalise, factor)


def _route_fake(logits, bias, count, normalise, factor):
    _check_route(logits, bias, count)
    shape = (logits.shape[0], count)
    return logits.new_empty(shape, dtype=torch.int64), logits.new_empty(shape)


def _route_cpu(logits, bias, count, normalise, factor):
    chosen, weights = _route_fake(logits, bias, count, normalise, factor)
    logits, bias = logits.contiguous(), bias.contiguous()
    cpu_kernels().route(
        logits.data_ptr(),
        bias.data_ptr(),
        *logits.shape,
        count,
        normalise,
        factor,
        chosen.data_ptr(),
        weights.data_ptr(),
        torch.get_num_threads(),
    )
    return chosen, weights


route = define(
    "route(Tensor logits, Tensor bias, int count, bool normalise, float factor) "
    "-> (Tensor, Tensor)",
    _route_reference,
    _route_fake,
    _route_cpu,
)
"""Choose experts by ``sqrt(softplus(logits)) + bias``, by the rule of ``ops/indexer``.

Args:
    logits: float32 ``[T, experts]``; bias: float32 ``[experts]``.

Returns:
    int64 numbers ``[T, count]``, ascending, and float32 weights, bias excluded, normalised if asked
    and more than one, times ``factor``.
"""


# -- gate of the shared expert --------------------------------------------------------------------


def _check_swiglu(gate: Tensor, up: Tensor, limit: float, dtype: torch.dtype) -> None:
    if gate.dtype not in ROW_DTYPES or gate.dim() != 2 or gate.shape[1] % LANES:
        allowed = f"bfloat16 or float32 [T, n], n a multiple of {LANES}"
        raise refuse("clamped_swiglu", "gate", gate, allowed)
    require("clamped_swiglu", "up", up, (gate.dtype,), tuple(gate.shape))
    if not limit > 0:
        raise refuse("clamped_swiglu", "limit", limit, "positive numbers")
    check_output_dtype("clamped_swiglu", dtype)


def _swiglu_reference(gate, up, limit, dtype):
    _check_swiglu(gate, up, limit, dtype)
    return reference.clamped_swiglu(gate, up, limit).to(dtype)


def _swiglu_fake(gate, up, limit, dtype):
    _check_swiglu(gate, up, limit, dtype)
    return gate.new_empty(gate.shape, dtype=dtype)


def _swiglu_cpu(gate, up, limit, dtype):
    out = _swiglu_fake(gate, up, limit, dtype)
    gate, up = gate.contiguous(), up.contiguous()
    cpu_kernels().swiglu(
        gate.data_ptr(),
        up.data_ptr(),
        gate.dtype == torch.bfloat16,
        *gate.shape,
        limit,
        out.data_ptr(),
        dtype == torch.bfloat16,
        torch.get_num_threads(),
    )
    return out


clamped_swiglu = define(
    "clamped_swiglu(Tensor gate, Tensor up, float limit, ScalarType dtype) -> Tensor",
    _swiglu_reference,
    _swiglu_fake,
    _swiglu_cpu,
)
"""``silu(min(gate, limit)) * clamp(up, -limit, limit)`` of ``[T, n]``, rounded to ``dtype``."""


# -- sum ------------------------------------------------------------------------------------------


def _check_sum(outputs: Tensor, chosen: Tensor, shared: Tensor, dtype: torch.dtype) -> None:
    name = "sum_experts"
    if shared.dtype not in ROW_DTYPES or shared.dim() != 2 or shared.shape[1] % LANES:
        allowed = f"bfloat16 or float32 [T, D], D a multiple of {LANES}"
        raise refuse(name, "shared", shared, allowed)
    tokens, columns = shared.shape
    require(name, "chosen", chosen, (torch.int64,), (tokens, "k"))
    require(name, "outputs", outputs, (shared.dtype,), (tokens, chosen.shape[1], columns))
    check_output_dtype(name, dtype)


def _sum_reference(outputs, chosen, shared, dtype):
    _check_sum(outputs, chosen, shared, dtype)
    return reference.sum_experts(outputs, chosen, shared, dtype)


def _sum_fake(outputs, chosen, shared, dtype):
    _check_sum(outputs, chosen, shared, dtype)
    return shared.new_empty(shared.shape, dtype=dtype)


def _sum_cpu(outputs, chosen, shared, dtype):
    out = _sum_fake(outputs, chosen, shared, dtype)
    outputs, chosen, shared = outputs.contiguous(), chosen.contiguous(), shared.contiguous()
    cpu_kernels().sum_experts(
        outputs.data_ptr(),
        chosen.data_ptr(),
        chosen.shape[1],
        shared.data_ptr(),
        shared.dtype == torch.bfloat16,
        *shared.shape,
        out.data_ptr(),
        dtype == torch.bfloat16,
        torch.get_num_threads(),
    )
    return out


sum_experts = define(
    "sum_experts(Tensor outputs, Tensor chosen, Tensor shared, ScalarType dtype) -> Tensor",
    _sum_reference,
    _sum_fake,
    _sum_cpu,
)
"""Sum of each token's expert outputs ``[T, k, D]``, by ascending number ``chosen`` ``[T, k]``, and
of the shared expert's ``[T, D]``, in float32, rounded to ``dtype``.
"""
