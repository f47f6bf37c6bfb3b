"""Codes and scale bytes are the reference's, bit for bit, on every kind of row.

If this fails, a GPU feeds other numbers into every FP8 and FP4 layer than a CPU does.
"""

from __future__ import annotations

import pytest
import torch

from vllm_deepinfer.ops import reference_linear

ALL_BFLOAT16 = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)


def adversarial_rows() -> torch.Tensor:
    """Groups whose maxima lie on and beside every power of two times 448, and tiny ones."""
    steps = 448.0 * 2.0 ** torch.arange(-30.0, 100.0)
    steps = torch.cat([steps, torch.nextafter(steps, steps * 2), torch.nextafter(steps, steps / 2)])
    rows = torch.randn(len(steps), 32).clamp(-3, 3) / 4 * steps.unsqueeze(1)
    rows[:, 7] = steps
    return torch.cat([rows, torch.zeros(1, 32), torch.full((1, 32), 1e-45)])


def halfway_rows() -> torch.Tensor:
    """Every midpoint between neighbouring e4m3 values, and its neighbours, under a scale of 1."""
    codes = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).to(torch.float32)
    middle = (codes[1:] + codes[:-1]) / 2
    values = torch.cat([middle, torch.nextafter(middle, codes[1:]), -middle, codes[:-1]])
    rows = torch.full((-(-len(values) // 31), 31), 1.0)
    rows.view(-1)[: len(values)] = values
    return torch.cat([rows, torch.full((len(rows), 1), 448.0)], 1)


@pytest.mark.parametrize(
    "x",
    [
        torch.randn(5, 96).to(torch.bfloat16),
        torch.randn(64, 2 * 32) * 2.0 ** torch.randint(-40, 40, (64, 64)),
        adversarial_rows(),
        halfway_rows(),
        ALL_BFLOAT16[ALL_BFLOAT16.isfinite()].view(-1, 32),
        torch.empty(0, 64),
    ],
    ids=["bfloat16", "wide", "scale-edges", "midpoints", "every-bfloat16", "no-rows"],
)
def test_codes_and_scales_equal_the_reference(interpreter, x):
    codes, scales = interpreter.run("quantise_fp8", x)
    wanted_codes, wanted_scales = reference_linear.quantise_fp8(x)
    assert torch.equal(codes.view(torch.uint8), wanted_codes.view(torch.uint8))
    assert torch.equal(scales, wanted_scales)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_group_that_is_not_finite_becomes_nan_and_spoils_no_other(interpreter, value):
    x = torch.randn(2, 64)
    wanted, _ = reference_linear.quantise_fp8(x)
    x[1, 3] = value
    codes, scales = interpreter.run("quantise_fp8", x)
    assert torch.equal(codes[0].float(), wanted[0].float())
    assert torch.equal(codes[1, 32:].float(), wanted[1, 32:].float())
    assert scales[1, 0] == 255 and codes[1, :32].float().isnan().all()
