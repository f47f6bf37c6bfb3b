"""Experts give each slot the reference's output, whichever slots come with it and on both targets.

If this fails, tokens get another expert's rows, or are quantised otherwise between the products.
"""

from __future__ import annotations

import pytest
import torch
from triton_kernels.errors import relative_error, uneven

from vllm_deepinfer.ops import formats, reference_linear

EXPERTS, INTER, HIDDEN = 3, 96, 64


def stacks() -> list[torch.Tensor]:
    shapes = [(EXPERTS, INTER, HIDDEN), (EXPERTS, INTER, HIDDEN), (EXPERTS, HIDDEN, INTER)]
    return [part for shape in shapes for part in formats.quantise_fp4_rows(uneven(*shape) / 16)]


def case(tokens: int, dtype: torch.dtype, quantised: bool = True, choices: int = 2) -> tuple:
    """Experts 0..5 are chosen, 1..3 are held; expert 2 never is."""
    x = torch.randn(tokens, HIDDEN).to(dtype)
    rows = reference_linear.quantise_fp8(x) if quantised else (x, None)
    chosen = torch.tensor([0, 1, 3, 4, 5])[torch.rand(tokens, 5).argsort(1)[:, :choices]]
    return *rows, chosen, torch.rand(tokens, choices), *stacks(), 1, 7.0, dtype


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
@pytest.mark.parametrize("tokens", [1, 7, 40])
def test_quantised_rows(interpreter, target, tokens):
    arguments = case(tokens, torch.bfloat16)
    found = interpreter.run("fp4_experts", *arguments, target=target)
    wanted = reference_linear.fp4_experts(*arguments)
    assert relative_error(found, wanted) <= 2e-3
    assert torch.equal(found == 0, wanted == 0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_plain_rows(interpreter, dtype):
    arguments = case(5, dtype, quantised=False)
    found = interpreter.run("fp4_experts", *arguments)
    bound = 1e-6 if dtype == torch.float32 else 2e-3
    assert relative_error(found, reference_linear.fp4_experts(*arguments)) <= bound


def test_slots_of_experts_held_elsewhere_are_zero(interpreter):
    x, scales, chosen, *rest = case(4, torch.bfloat16)
    assert not interpreter.run("fp4_experts", x, scales, chosen * 0, *rest).any()


def test_slot_alone_has_the_bits_it_has_in_a_batch(interpreter):
    x, scales, chosen, weights, *rest = case(37, torch.bfloat16)

    def rows(part: slice) -> torch.Tensor:
        parts = (x[part], scales[part], chosen[part], weights[part])
        return interpreter.run("fp4_experts", *parts, *rest, batch_invariant=True)

    batch = rows(slice(None))
    for token in (0, 20, 36):
        assert torch.equal(rows(slice(token, token + 1))[0], batch[token])
