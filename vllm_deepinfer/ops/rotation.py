"""Rotary position embedding, as operations (section 2.5 of the V4.1 specification)."""

from __future__ import annotations

import torch
from torch import Tensor

from vllm_deepinfer.ops import reference
from vllm_deepinfer.ops.library import cpu_kernels, define, refuse
from vllm_deepinfer.ops.linear import check_output_dtype
from vllm_deepinfer.ops.quantise import ROW_DTYPES

# -- angles ---------------------------------------------------------------------------------------


def _check_angles(positions: Tensor, frequencies: Tensor, tokens_per_row: int) -> None:
    name = "rope_angles"
    if positions.dtype != torch.int64 or positions.dim() != 1:
        raise refuse(name, "positions", positions, "int64 [T]")
    if frequencies.dtype != torch.float32 or frequencies.dim() != 1:
        raise refuse(name, "frequencies", frequencies, "float32 [pairs]")
    if tokens_per_row < 1:
        raise refuse(name, "tokens_per_row", tokens_per_row, "1 and more")


def _angles_reference(positions, frequencies, tokens_per_row=1):
    _check_angles(positions, frequencies, tokens_per_row)
    return reference.rope_angles(positions, frequencies, tokens_per_row)


def _angles_fake(positions, frequencies, tokens_per_row=1):
    _check_angles(positions, frequencies, tokens_per_row)
    shape = (positions.shape[0], frequencies.shape[0])
    return frequencies.new_empty(shape), frequencies.new_empty(shape)


def _angles_cpu(positions, frequencies, tokens_per_row=1):
    cos, sin = _angles_fake(positions, frequencies, tokens_per_row)
    positions, frequencies = positions.contiguous(), frequencies.contiguous()
    cpu_kernels().angles(
        positions.data_ptr(),
        frequencies.data_ptr(),
        positions.shape[0],
        frequencies.shape[0],
        tokens_per_row,
        cos.data_ptr(),
        sin.data_ptr(),
        torch.get_num_threads(),
    )
    return cos, sin


rope_angles = define(
    "rope_angles(Tensor positions, Tensor frequencies, int tokens_per_row=1) -> (Tensor, Tensor)",
    _angles_reference,
    _angles_fake,
    _angles_cpu,
)
"""Cosines and sines, float32 ``[T, pairs]``, at int64 positions ``[T]``.

With ``tokens_per_row``, at the first position of each one's row of that many tokens. An angle is a
float32 product; its cosine and sine are rounded once.
"""


# -- rotation -------------------------------------------------------------------------------------


def check_turns(name: str, cos: Tensor, sin: Tensor, tokens: int, width: int) -> None:
    """Refuse cosines and sines that are not those of ``tokens`` rows of ``width`` columns."""
    for argument, turns in (("cos", cos), ("sin", sin)):
        if (
            turns.dtype != torch.float32
            or turns.dim() != 2
            or turns.shape != cos.shape
            or turns.shape[0] != tokens
            or 2 * turns.shape[1] > width
            or not turns.is_contiguous()
        ):
            allowed = f"float32 [{tokens}, pairs], contiguous, at most {width // 2} pairs"
            raise refuse(name, argument, turns, allowed)


def _check_rotate(x: Tensor, cos: Tensor, sin: Tensor, dtype: torch.dtype) -> None:
    if x.dtype not in ROW_DTYPES or x.dim() not in (2, 3):
        raise refuse("rotate", "x", x, "bfloat16 or float32 [T, n] or [T, H, n]")
    check_turns("rotate", cos, sin, x.shape[0], x.shape[-1])
    check_output_dtype("rotate", dtype)


def _rotate_reference(x, cos, sin, dtype, backwards=False):
    _check_rotate(x, cos, sin, dtype)
    turned = reference.rotate_pairs(x, cos, -sin if backwards else sin, 2 * cos.shape[1])
    return turned.to(dtype)


def _rotate_fake(x, cos, sin, dtype, backwards=False):
    _check_rotate(x, cos, sin, dtype)
    return x.new_empty(x.shape, dtype=dtype)


def _rotate_cpu(x, cos, sin, dtype, backwards=False):
    out = _rotate_fake(x, cos, sin, dtype)
    x = x.contiguous()
    cpu_kernels().rotate(
        x.data_ptr(),
        x.dtype == torch.bfloat16,
        x.shape[0],
        x.shape[1] if x.dim() == 3 else 1,
        x.shape[-1],
        cos.data_ptr(),
        sin.data_ptr(),
        cos.shape[1],
        backwards,
        out.data_ptr(),
        dtype == torch.bfloat16,
        torch.get_num_threads(),
    )
    return out


rotate = define(
    "rotate(Tensor x, Tensor cos, Tensor sin, ScalarType dtype, bool backwards=False) -> Tensor",
    _rotate_reference,
    _rotate_fake,
    _rotate_cpu,
)
"""Rotate interleaved pairs of the last columns of ``[T, ..., n]``, rounded to ``dtype``.

``cos`` and ``sin`` are float32 ``[T, pairs]``; columns before the last ``2 * pairs`` are copied.
"""
