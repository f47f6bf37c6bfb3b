"""Hyper-connections, as operations: how residual streams are mixed (section 2.2).

Shapes: T tokens, S = 4 streams, D hidden size.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vllm_deepinfer.ops import reference
from vllm_deepinfer.ops.library import cpu_kernels, define, refuse, require
from vllm_deepinfer.ops.linear import check_output_dtype
from vllm_deepinfer.ops.norm import LANES
from vllm_deepinfer.ops.quantise import ROW_DTYPES

STREAMS = 4
MIXES = 2 * STREAMS + STREAMS * STREAMS
_F32 = (torch.float32,)


def check_streams(name: str, streams: Tensor) -> tuple[int, int]:
    """Refuse streams that are not ``[T, 4, D]``; returns T and D."""
    shape = streams.shape
    if (
        streams.dtype not in ROW_DTYPES
        or len(shape) != 3
        or shape[1] != STREAMS
        or shape[2] % LANES
        or not streams.is_contiguous()
    ):
        allowed = f"bfloat16 or float32 [T, {STREAMS}, D], contiguous, D a multiple of {LANES}"
        raise refuse(name, "streams", streams, allowed)
    return shape[0], shape[2]


# -- coefficients ---------------------------------------------------------------------------------


def _check_mixes(
    streams: Tensor, projection: Tensor, scale: Tensor, base: Tensor, iterations: int
) -> None:
    name = "stream_mixes"
    _, columns = check_streams(name, streams)
    require(name, "projection", projection, _F32, (MIXES, STREAMS * columns), contiguous=True)
    require(name, "scale", scale, _F32, (3,), contiguous=True)
    require(name, "base", base, _F32, (MIXES,), contiguous=True)
    if iterations < 1:
        raise refuse(name, "iterations", iterations, "1 and more")


def _mixes_reference(streams, projection, scale, base, rms_eps, hc_eps, iterations):
    _check_mixes(streams, projection, scale, base, iterations)
    return reference.stream_mixes(streams, projection, scale, base, rms_eps, hc_eps, iterations)


def _mixes_fake(streams, projection, scale, base, rms_eps, hc_eps, iterations):
    _check_mixes(streams, projection, scale, base, iterations)
    tokens = streams.shape[0]
    return (
        scale.new_empty(tokens, STREAMS),
        scale.new_empty(tokens, STREAMS),
        scale.new_empty(tokens, STREAMS, STREAMS),
    )


def _mixes_cpu(streams, projection, scale, base, rms_eps, hc_eps, iterations):
    out = _mixes_fake(streams, projection, scale, base, rms_eps, hc_eps, iterations)
    cpu_kernels().stream_mixes(
        streams.data_ptr(),
        streams.dtype == torch.bfloat16,
        streams.shape[0],
        projection.shape[1],
        projection.data_ptr(),
        scale.data_ptr(),
        base.data_ptr(),
        rms_eps,
        hc_eps,
        iterations,
        out[0].data_ptr(),
        out[1].data_ptr(),
        out[2].data_ptr(),
        torch.get_num_threads(),
    )
    return out


stream_mixes = define(
    "stream_mixes(Tensor streams, Tensor projection, Tensor scale, Tensor base, float rms_eps, "
    "float hc_eps, int iterations) -> (Tensor, Tensor, Tensor)",
    _mixes_reference,
    _mixes_fake,
    _mixes_cpu,
)
"""Mixing coefficients of ``[T, S, D]`` streams: float32 pre and post ``[T, S]`` and the doubly
normalised combination ``[T, S, S]``.

``projection`` ``[24, S * D]``, ``scale`` ``[3]`` and ``base`` ``[24]`` are float32.
"""


# -- collapsing and expanding ---------------------------------------------------------------------


def _check_mix(streams: Tensor, pre: Tensor, dtype: torch.dtype) -> None:
    tokens, _ = check_streams("mix_streams", streams)
    require("mix_streams", "pre", pre, _F32, (tokens, STREAMS), contiguous=True)
    check_output_dtype("mix_streams", dtype)


def _mix_reference(streams, pre, dtype):
    _check_mix(streams, pre, dtype)
    return reference.mix_streams(streams, pre, dtype)


def _mix_fake(streams, pre, dtype):
    _check_mix(streams, pre, dtype)
    return streams.new_empty(streams.shape[0], streams.shape[2], dtype=dtype)


def _mix_cpu(streams, pre, dtype):
    out = _mix_fake(streams, pre, dtype)
    cpu_kernels().mix_streams(
        streams.data_ptr(),
        streams.dtype == torch.bfloat16,
        pre.data_ptr(),
        out.shape[0],
        out.shape[1],
        out.data_ptr(),
        dtype == torch.bfloat16,
        torch.get_num_threads(),
    )
    return out


mix_streams = define(
    "mix_streams(Tensor streams, Tensor pre, ScalarType dtype) -> Tensor",
    _mix_reference,
    _mix_fake,
    _mix_cpu,
)
"""Collapse ``[T, S, D]`` to ``[T, D]`` with float32 weights ``[T, S]``, rounded to ``dtype``."""


def _check_expand(
    out: Tensor, streams: Tensor, post: Tensor, comb: Tensor, dtype: torch.dtype
) -> None:
    name = "expand_streams"
    tokens, columns = check_streams(name, streams)
    require(name, "out", out, ROW_DTYPES, (tokens, columns))
    require(name, "post", post, _F32, (tokens, STREAMS), contiguous=True)
    require(name, "comb", comb, _F32, (tokens, STREAMS, STREAMS))
    check_output_dtype(name, dtype)


def _expand_reference(out, streams, post, comb, dtype):
    _check_expand(out, streams, post, comb, dtype)
    return reference.expand_streams(out, streams, post, comb, dtype)


def _expand_fake(out, streams, post, comb, dtype):
    _check_expand(out, streams, post, comb, dtype)
    return streams.new_empty(streams.shape, dtype=dtype)


def _expand_cpu(out, streams, post, comb, dtype):
    result = _expand_fake(out, streams, post, comb, dtype)
    out, comb = out.contiguous(), comb.contiguous()
    cpu_kernels().expand_streams(
        out.data_ptr(),
        out.dtype == torch.bfloat16,
        streams.data_ptr(),
        streams.dtype == torch.bfloat16,
        post.data_ptr(),
        comb.data_ptr(),
        out.shape[0],
        out.shape[1],
        result.data_ptr(),
        dtype == torch.bfloat16,
        torch.get_num_threads(),
    )
    return result


expand_streams = define(
    "expand_streams(Tensor out, Tensor streams, Tensor post, Tensor comb, ScalarType dtype) "
    "-> Tensor",
    _expand_reference,
    _expand_fake,
    _expand_cpu,
)
"""New streams ``[T, S, D]``: stream j is ``post_j * out + sum_i comb[i, j] * streams_i``.

``out`` is the sub-layer's ``[T, D]``; sums are float32 and rounded to ``dtype``.
"""
