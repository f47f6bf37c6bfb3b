"""A row's result is the same bits alone and in any batch, in any place, on one thread or two.

Every version of the kernels gives these bits, too. If this fails, a request's tokens depend on its
neighbours, on chunked prefill and on how many drafts are verified with it.
"""

from __future__ import annotations

import pytest
import torch
from kernels import model_cases
from kernels.conftest import SAME_BITS, kernels
from kernels.quantised_operands import activations, expert_arguments, fp8_weight, same_bits

from vllm_deepinfer.ops.experts import fp4_experts
from vllm_deepinfer.ops.linear import fp8_linear, plain_linear
from vllm_deepinfer.ops.quantise import quantise_fp8

MOST = 256
BATCHES = (1, 2, 3, 4, 5, 6, 7, 8, 12, 13, 15, 16, 17, 31, 32, 33, 64, 200, MOST)
VERIFIED = (2, 3, 6)  # one token and the drafts behind it


def quantised(kind):
    x, scales = activations(MOST, 256, kind)
    weight, scale = fp8_weight(96, 256)

    def compute(part):
        chosen = None if scales is None else scales[part]
        return fp8_linear(x[part], chosen, weight, scale, torch.float32)

    return compute


def grouped(kind):
    x, _ = activations(MOST, 192, kind)
    weight, scale = fp8_weight(192, 96)
    return lambda part: fp8_linear(x[part], None, weight, scale, torch.float32, 2)


def plain(kind):
    x, _ = activations(MOST, 288, kind)
    weight = torch.randn(70, 288).to(torch.bfloat16)
    return lambda part: plain_linear(x[part], weight)


def experts(kind):
    x, scales, chosen, weights, *rest = expert_arguments(MOST, kind, torch.float32)

    def compute(part):
        some = None if scales is None else scales[part]
        return fp4_experts(x[part], some, chosen[part], weights[part], *rest)

    return compute


def codes(kind):
    x, _ = activations(MOST, 160, kind)
    return lambda part: torch.cat([t.view(torch.uint8) for t in quantise_fp8(x[part])], 1)


CASES = {
    "fp8_codes": (quantised, "codes"),
    "fp8_bfloat16": (quantised, "bfloat16"),
    "fp8_float32": (quantised, "float32"),
    "grouped": (grouped, "bfloat16"),
    "plain": (plain, "bfloat16"),
    "plain_float32": (plain, "float32"),
    "experts_codes": (experts, "codes"),
    "experts_plain": (experts, "bfloat16"),
    "quantiser": (codes, "bfloat16"),
}


def of_the_model(case):
    """A row's bytes, of all results."""

    def make(kind):
        run = case.make(MOST)
        return lambda part: torch.cat([row_bytes(result) for result in run(False, part)], 1)

    return make


def row_bytes(result):
    return result.contiguous().view(len(result), -1).view(torch.uint8)


CASES |= {name: (of_the_model(case), "") for name, case in model_cases.CASES.items()}


@pytest.fixture(params=CASES.values(), ids=CASES)
def operation(request):
    make, kind = request.param
    return make(kind)


def test_batch_and_place_change_no_bit(operation, isa):
    alone = torch.cat([operation(slice(row, row + 1)) for row in range(MOST)])
    for size in BATCHES:
        for first in {0, 1, MOST // 2 - 1, MOST - size}:
            part = slice(first, min(first + size, MOST))
            assert same_bits(operation(part), alone[part]), (size, first)


def test_verified_rows_equal_decoded_ones(operation):
    """Rows of a request at the end of a mixed batch, after any number of other rows."""
    alone = torch.cat([operation(slice(row, row + 1)) for row in range(40)])
    for count in VERIFIED:
        for others in range(8):
            part = slice(30 - others, 30 + count)
            assert same_bits(operation(part)[others:], alone[30 : 30 + count]), (count, others)


def test_two_threads_change_no_bit(operation):
    """The largest batch is work enough for two; see kWorkOfOneThread."""
    parts = [slice(0, size) for size in (1, 5, MOST)]
    one = [operation(part) for part in parts]
    own = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        two = [operation(part) for part in parts]
    finally:
        torch.set_num_threads(own)
    assert all(same_bits(a, b) for a, b in zip(one, two, strict=True))


@pytest.mark.parametrize("isas", [isas for isas in SAME_BITS if len(isas) > 1], ids="-".join)
def test_versions_change_no_bit(operation, isas):
    own, results = kernels.isa(), {}
    try:
        for isa in isas:
            kernels.choose_isa(isa)
            results[isa] = [operation(slice(0, size)) for size in (1, 4, 5, 40)]
    finally:
        kernels.choose_isa(own)
    for isa in isas[:-1]:
        assert all(same_bits(a, b) for a, b in zip(results[isa], results[isas[-1]], strict=True))
