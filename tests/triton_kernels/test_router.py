"""The router chooses the reference's experts, ties included; their outputs are summed in its order.

If this fails, tokens go to other experts on a GPU, or sums depend on the order of choices.
"""

from __future__ import annotations

import pytest
import torch
from triton_kernels.errors import relative_error

from vllm_deepinfer.ops import router


@pytest.mark.parametrize(("count", "normalise"), [(6, True), (3, False), (1, True)])
def test_choice_and_weights(interpreter, count, normalise):
    logits = torch.randn(7, 50) * 4
    logits[1] = 0.5  # ties everywhere
    logits[2, ::2] = -90.0  # whose softplus is no longer a normal number
    logits[3, 5] = 60.0
    arguments = (logits, torch.randn(50).round(), count, normalise, 1.5)
    chosen, weights = interpreter.run("route", *arguments)
    wanted, wanted_weights = router._route_reference(*arguments)
    assert torch.equal(chosen, wanted)
    assert relative_error(weights, wanted_weights) <= 1e-6


def test_nan_is_above_all_numbers(interpreter):
    """The rule of ops/indexer: what a fault made is chosen, and shows."""
    logits = torch.randn(2, 50)
    logits[0, [9, 30]] = float("nan")
    arguments = (logits, torch.zeros(50), 3, True, 1.0)
    chosen, weights = interpreter.run("route", *arguments)
    assert torch.equal(chosen, router._route_reference(*arguments)[0])
    assert {9, 30} <= set(chosen[0].tolist()) and weights[0].isnan().all()


def test_experts_with_a_bias_of_minus_infinity_come_last_and_once(interpreter):
    bias = torch.full((5,), float("-inf"))
    bias[3] = 0.0
    chosen, _ = interpreter.run("route", torch.zeros(1, 5), bias, 3, True, 1.0)
    assert chosen.tolist() == [[0, 1, 3]]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_gate_is_clamped(interpreter, dtype):
    arguments = (torch.randn(3, 48) * 9, torch.randn(3, 48) * 9, 7.0, dtype)
    found = interpreter.run("clamped_swiglu", *arguments)
    bound = 1e-6 if dtype == torch.float32 else 2e-3
    assert relative_error(found, router._swiglu_reference(*arguments)) <= bound


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_outputs_are_summed_by_ascending_number(interpreter, dtype):
    outputs, shared = torch.randn(4, 6, 80) * 100, torch.randn(4, 80)
    chosen = torch.stack([torch.randperm(50)[:6] for _ in range(4)])
    arguments = (outputs.to(dtype), chosen, shared.to(dtype), torch.float32)
    found = interpreter.run("sum_experts", *arguments)
    assert torch.equal(found, router._sum_reference(*arguments))
