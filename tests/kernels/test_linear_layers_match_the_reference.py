"""Linear layers and experts compute the reference's sums, whatever codes and scales are stored.

Bounds: 1e-6 relative L2 before rounding (both add in float32, in different orders), 2e-3 after
rounding to bfloat16. If this fails, the model computes something else on a machine with C++ kernels
than on one without.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels.quantised_operands import (
    FINITE_CODES,
    activations,
    exact_product,
    expert_arguments,
    fp8_weight,
    relative,
)

from vllm_deepinfer.ops import formats
from vllm_deepinfer.ops import reference_linear as reference
from vllm_deepinfer.ops.experts import fp4_experts
from vllm_deepinfer.ops.linear import fp8_linear, plain_linear

BEFORE_ROUNDING, AFTER_ROUNDING = 1e-6, 2e-3
KINDS = ("codes", "bfloat16", "float32")
# Both sides of every switch: four rows a tile on one machine, six on another, sixteen on a third.
ROWS = (1, 2, 3, 4, 5, 6, 7, 13, 17, 33)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(128, 256), (33, 32), (70, 96), (3, 320)], ids=str)
def test_fp8_layer(isa, shape, kind):
    weight, scale = fp8_weight(*shape)
    for rows in ROWS:
        x, scales = activations(rows, shape[1], kind)
        found = fp8_linear(x, scales, weight, scale, torch.float32)
        assert relative(found, exact_product(x, scales, weight, scale)) < BEFORE_ROUNDING
        rounded = fp8_linear(x, scales, weight, scale, torch.bfloat16)
        assert torch.equal(rounded, found.to(torch.bfloat16))


@pytest.mark.parametrize("kind", KINDS)
def test_groups_meet_their_own_rows(isa, kind):
    weight, scale = fp8_weight(3 * 64, 96)
    x, scales = activations(5, 3 * 96, kind)
    found = fp8_linear(x, scales, weight, scale, torch.float32, 3)
    wanted = reference.fp8_linear(x, scales, weight, scale, torch.float32, 3)
    assert found.shape == (5, 192) and relative(found, wanted) < BEFORE_ROUNDING


@pytest.mark.parametrize("rows", [1, 9])
def test_every_fp8_code_is_read(isa, rows):
    """One code a weight row: no other hides a misread one. NaN codes spoil only their row."""
    weight = torch.arange(256, dtype=torch.uint8).unsqueeze(1).repeat(1, 64)
    scale = torch.full((8, 2), 127, dtype=torch.uint8)
    x, scales = activations(rows, 64, "bfloat16")
    found = fp8_linear(x, scales, weight.view(torch.float8_e4m3fn), scale, torch.float32)
    wanted = exact_product(x, scales, weight.view(torch.float8_e4m3fn), scale)
    assert found[:, [0x7F, 0xFF]].isnan().all()
    finite = found[:, FINITE_CODES].double()
    assert torch.allclose(finite, wanted[:, FINITE_CODES], rtol=1e-5, atol=1e-4 * 448)
    zero = found[:, [0x00, 0x80]]
    assert torch.equal(zero, torch.zeros_like(zero))


@pytest.mark.parametrize("rows", [1, 9])
@pytest.mark.parametrize("kind", ["bfloat16", "float32"])
def test_every_block_exponent_is_applied(isa, rows, kind):
    """From the smallest with which no code is subnormal to the largest without overflow."""
    for exponent in range(10, 247, 4):
        weight, scale = fp8_weight(32, 64, (exponent, exponent))
        x, _ = activations(rows, 64, kind)
        x = x * 2.0 ** max(min(127 - exponent, 60), -100)
        found = fp8_linear(x, None, weight, scale, torch.float32)
        assert relative(found, exact_product(x, None, weight, scale)) < BEFORE_ROUNDING, exponent


def test_scales_of_every_size_may_meet_in_one_row(isa):
    weight, scale = fp8_weight(64, 64 * 32, (30, 220))
    x, scales = activations(2, 64 * 32, "codes")
    wanted = exact_product(x, scales, weight, scale).float().double()
    found = fp8_linear(x, scales, weight, scale, torch.float32)
    assert torch.equal(found.isfinite(), wanted.isfinite())
    finite = wanted.isfinite()
    assert relative(found[finite] / wanted.abs().max(), wanted[finite] / wanted.abs().max()) < 1e-6


@pytest.mark.parametrize("rows", [1, 9])
def test_nan_scale_spoils_its_block_alone(isa, rows):
    weight, scale = fp8_weight(96, 64)
    scale[1, 0] = 255
    x, scales = activations(rows, 64, "codes")
    found = fp8_linear(x, scales, weight, scale, torch.float32)
    assert found[:, 32:64].isnan().all()
    assert found[:, :32].isfinite().all() and found[:, 64:].isfinite().all()


@pytest.mark.parametrize("kind", ["bfloat16", "float32"])
@pytest.mark.parametrize("shape", [(24, 256), (1, 288), (40, 45), (5, 7), (64, 33)], ids=str)
def test_plain_layer(isa, shape, kind):
    weight = torch.randn(shape).to(torch.bfloat16)
    for rows in ROWS:
        x, _ = activations(rows, shape[1], kind)
        found = plain_linear(x, weight)
        assert relative(found, x.double() @ weight.double().T) < BEFORE_ROUNDING


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tokens", [1, 4, 11])
def test_experts(isa, tokens, kind):
    """Each slot is compared: those of experts that are not here are zero, not undefined."""
    for dtype, bound in ((torch.float32, BEFORE_ROUNDING), (torch.bfloat16, AFTER_ROUNDING)):
        arguments = expert_arguments(tokens, kind, dtype)
        found, wanted = fp4_experts(*arguments), reference.fp4_experts(*arguments)
        chosen, first, held = arguments[2], arguments[10], len(arguments[4])
        here = (chosen >= first) & (chosen < first + held)
        assert not found[~here].any()
        errors = [relative(a, b) for a, b in zip(found[here], wanted[here], strict=True)]
        # An inner value at the edge between two codes may take the other: a slot may differ so.
        assert sorted(errors)[len(errors) // 2] < bound and max(errors) < 0.05


def test_every_fp4_code_and_row_scale_is_read(isa):
    """Weights of the first product are one byte each; the second passes inner values through."""
    hidden, inter, experts = 32, 256, 1
    w1 = torch.arange(256, dtype=torch.int16).to(torch.uint8).view(1, 256, 1).repeat(1, 1, 16)
    scale1 = (127 + torch.arange(256) % 9 - 4).to(torch.uint8).view(1, 256, 1)
    w3 = torch.full((experts, inter, hidden // 2), 0x22, dtype=torch.uint8)  # ones
    ones = torch.full((experts, inter, 1), 127, dtype=torch.uint8)
    w2 = torch.full((experts, hidden, inter // 2), 0x22, dtype=torch.uint8)
    scale2 = torch.full((experts, hidden, inter // 32), 127, dtype=torch.uint8)
    x = torch.rand(1, hidden) / 64
    arguments = (
        x, None, torch.zeros(1, 1, dtype=torch.int64), torch.ones(1, 1), w1, scale1, w3, ones,
        w2, scale2, 0, 1e30, torch.float32,
    )  # fmt: skip
    found, wanted = fp4_experts(*arguments), reference.fp4_experts(*arguments)
    assert relative(found, wanted) < BEFORE_ROUNDING
    gate = formats.dequantise_fp4_rows(w1[0], scale1[0]).double() @ x.double().T
    assert len(set(gate.flatten().tolist())) > 200


def test_clamps_hold_for_large_products(isa):
    """Gates stay moderate: the exponential of a large one turns its last bit into many."""
    arguments = list(expert_arguments(6, "float32", torch.float32))
    arguments[0] = arguments[0] * 2.0**10
    arguments[5] = arguments[5] - 10
    arguments[11] = 0.5
    found = fp4_experts(*arguments)
    assert relative(found, reference.fp4_experts(*arguments)) < BEFORE_ROUNDING
    assert found.isfinite().all()


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 2**31),
    st.integers(1, 20),
    st.integers(1, 80),
    st.integers(1, 9),
    st.sampled_from(KINDS),
)
def test_any_shape(seed, rows, outputs, groups, kind):
    torch.manual_seed(seed)
    weight, scale = fp8_weight(outputs, 32 * groups)
    x, scales = activations(rows, 32 * groups, kind)
    found = fp8_linear(x, scales, weight, scale, torch.float32)
    wanted = exact_product(x, scales, weight, scale)
    assert (found.double() - wanted).norm() <= BEFORE_ROUNDING * max(wanted.norm(), 448.0)
