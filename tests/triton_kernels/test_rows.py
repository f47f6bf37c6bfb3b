"""Norms, rotations and streams: the reference's values, for ragged widths and any tokens.

If this fails, a layer's input is normalised, rotated or mixed otherwise on a GPU.
"""

from __future__ import annotations

import pytest
import torch
from triton_kernels.errors import relative_error, uneven

from vllm_deepinfer.ops import norm, rotation, streams

DTYPES = [torch.bfloat16, torch.float32]


def rounding(dtype: torch.dtype) -> float:
    """Bound of the relative error, with what a value rounded the other way costs."""
    return 1e-6 if dtype == torch.float32 else 2e-3


@pytest.mark.parametrize("dtype", DTYPES)
def test_norm(interpreter, dtype):
    x, weight = uneven(5, 80).to(dtype), torch.randn(80).to(torch.bfloat16)
    x[2] = 0.0
    found = interpreter.run("rms_norm", x, weight, 1e-20, dtype)
    assert relative_error(found, norm._reference(x, weight, 1e-20, dtype)) <= rounding(dtype)
    assert not found[2].any()


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("shape", [(5, 48), (3, 2, 64)])
def test_rotation_is_exact(interpreter, shape, backwards):
    x = torch.randn(shape).to(torch.bfloat16)
    angles = torch.rand(shape[0], 16) * 7
    for dtype in DTYPES:
        arguments = (x, angles.cos(), angles.sin(), dtype, backwards)
        found = interpreter.run("rotate", *arguments)
        assert torch.equal(found, rotation._rotate_reference(*arguments))


def mixing_case(tokens: int, columns: int, dtype: torch.dtype) -> tuple:
    projection = torch.randn(streams.MIXES, streams.STREAMS * columns) / columns**0.5
    scale, base = torch.rand(3) * 2, torch.randn(streams.MIXES)
    x = torch.randn(tokens, streams.STREAMS, columns).to(dtype)
    return x, projection, scale, base, 1e-20, 1e-6, 20


@pytest.mark.parametrize("columns", [48, 160])
def test_mixing_coefficients(interpreter, columns):
    arguments = mixing_case(18, columns, torch.bfloat16)
    found = interpreter.run("stream_mixes", *arguments)
    for mine, wanted in zip(found, streams._mixes_reference(*arguments), strict=True):
        assert relative_error(mine, wanted) <= 1e-6
    alone = interpreter.run("stream_mixes", arguments[0][17:], *arguments[1:])
    assert all(torch.equal(one[0], many[17]) for one, many in zip(alone, found, strict=True))


@pytest.mark.parametrize("dtype", DTYPES)
def test_streams_are_collapsed_and_expanded(interpreter, dtype):
    x = torch.randn(3, streams.STREAMS, 48).to(dtype)
    pre, post, comb = torch.rand(3, 4), torch.rand(3, 4), torch.rand(3, 4, 4)
    found = interpreter.run("mix_streams", x, pre, dtype)
    assert relative_error(found, streams._mix_reference(x, pre, dtype)) <= rounding(dtype)
    arguments = (torch.randn(3, 48).to(dtype), x, post, comb, dtype)
    found = interpreter.run("expand_streams", *arguments)
    assert relative_error(found, streams._expand_reference(*arguments)) <= rounding(dtype)
