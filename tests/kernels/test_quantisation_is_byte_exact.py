"""The quantiser writes the reference's bytes: codes and scales, in every version of the kernel.

If this fails, a layer's input differs from what the checkpoint was trained with, or caches written
by one machine are misread by another.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels.quantised_operands import same_bits

from vllm_deepinfer.ops import reference_linear as reference
from vllm_deepinfer.ops.quantise import quantise_fp8


def assert_equals_reference(x):
    codes, scales = quantise_fp8(x)
    wanted_codes, wanted_scales = reference.quantise_fp8(x)
    assert torch.equal(scales, wanted_scales)
    assert same_bits(codes, wanted_codes)


def test_every_finite_bfloat16_value(isa):
    every = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    finite = every[every.isfinite()]
    assert_equals_reference(finite[: len(finite) // 32 * 32].view(-1, 32))
    mixed = finite[torch.randperm(len(finite))[: len(finite) // 256 * 256]]
    assert_equals_reference(mixed.view(-1, 256))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_every_exponent_of_the_largest_value(isa, dtype):
    """Groups whose maximum is at, just below and just above each power of two."""
    powers = 2.0 ** torch.arange(-126, 128, dtype=torch.float32)
    near = torch.stack([powers, powers * (1 + 2**-7), powers * (2 - 2**-7)], 1).flatten()
    rows = torch.randn(len(near), 32).clamp(-1, 1) * near.unsqueeze(1)
    rows[:, 7] = -near
    assert_equals_reference(rows.to(dtype))


def test_midpoints_between_codes_go_to_the_even_one(isa):
    values = torch.arange(0x7F, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    midpoints = (values[1:] + values[:-1]) / 2
    around = [torch.nextafter(midpoints, torch.tensor(to)) for to in (torch.inf, -torch.inf)]
    numbers = torch.cat([values, midpoints, *around, torch.tensor([0.0])])
    rows = torch.zeros(2 * len(numbers), 32)
    rows[:, 0] = 448.0  # so that the scale is one
    rows[: len(numbers), 5], rows[len(numbers) :, 5] = numbers, -numbers
    assert_equals_reference(rows)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_group_that_is_not_finite_is_nan_and_spoils_no_other(isa, value):
    x = torch.randn(3, 96)
    wanted_codes, wanted_scales = quantise_fp8(x)
    x[1, 40] = value
    codes, scales = quantise_fp8(x)
    assert scales[1, 1] == 255 and codes[1, 32:64].float().isnan().all()
    scales[1, 1], codes[1, 32:64] = wanted_scales[1, 1], wanted_codes[1, 32:64]
    assert torch.equal(scales, wanted_scales) and same_bits(codes, wanted_codes)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 40), st.integers(1, 6), st.booleans())
def test_random_rows_of_any_size(seed, rows, groups, narrow):
    generator = torch.Generator().manual_seed(seed)
    exponents = torch.randint(-40, 40, (rows, 32 * groups), generator=generator)
    x = torch.randn(rows, 32 * groups, generator=generator) * 2.0**exponents
    assert_equals_reference(x.to(torch.bfloat16) if narrow else x)


def test_rows_need_not_be_contiguous():
    x = torch.randn(64, 8).T
    assert_equals_reference(x)
    assert same_bits(quantise_fp8(x)[0], quantise_fp8(x.contiguous())[0])


def test_no_rows_give_no_codes():
    codes, scales = quantise_fp8(torch.empty(0, 64))
    assert codes.shape == (0, 64) and scales.shape == (0, 2)
