"""An operation refuses what it cannot compute, naming argument, shape, dtype and what is allowed.

The kernels read raw addresses: a shape that gets past these checks reads foreign memory. The fake
implementations promise exactly the shapes that come.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from kernels.quantised_operands import activations, expert_arguments, fp8_weight

from vllm_deepinfer.ops.experts import fp4_experts
from vllm_deepinfer.ops.library import OperationError
from vllm_deepinfer.ops.linear import fp8_linear, plain_linear
from vllm_deepinfer.ops.quantise import quantise_fp8


def fp8_arguments():
    return [*activations(4, 64, "codes"), *fp8_weight(96, 64), torch.bfloat16, 1]


def wide(tensor):
    """The same values, no longer contiguous."""
    return torch.cat([tensor.view(torch.uint8)] * 2, -1)[..., : tensor.shape[-1]].view(tensor.dtype)


def changed(arguments, changes):
    for position, value in changes.items():
        arguments[position] = value
    return arguments


FP8 = [
    ({2: torch.ones(96, 64)}, ["weight", "float32 [96, 64]", "float8_e4m3fn"]),
    ({2: wide(fp8_weight(96, 64)[0])}, ["weight", "not contiguous"]),
    ({2: fp8_weight(96, 64)[0][:, :40].contiguous()}, ["weight", "[96, 40]", "multiple of 32"]),
    ({3: torch.ones(3, 3, dtype=torch.uint8)}, ["weight_scale", "uint8 [3, 3]", "[3, 2]"]),
    ({3: torch.ones(3, 2)}, ["weight_scale", "float32 [3, 2]", "float8_e8m0fnu"]),
    ({0: torch.ones(4, 64), 1: torch.ones(4, 2)}, ["x is float32 [4, 64]", "float8_e4m3fn"]),
    ({0: torch.ones(4, 32), 1: None}, ["x is float32 [4, 32]", "[T, 64]"]),
    ({0: torch.ones(4, 64, dtype=torch.int32), 1: None}, ["x is int32", "bfloat16 or float32"]),
    ({1: torch.ones(4, 1, dtype=torch.uint8)}, ["scales", "uint8 [4, 1]", "[4, 2]"]),
    ({4: torch.float16}, ["dtype", "torch.float16", "torch.bfloat16"]),
    ({5: 2}, ["groups is 2", "96 rows"]),
    ({5: 0}, ["groups is 0"]),
]


@pytest.mark.parametrize(("changes", "words"), FP8, ids=range(len(FP8)))
def test_fp8_layer(changes, words):
    with pytest.raises(OperationError) as error:
        fp8_linear(*changed(fp8_arguments(), changes))
    for word in ["fp8_linear", *words]:
        assert word in str(error.value)


EXPERTS = [
    ({2: torch.zeros(5, 3, dtype=torch.int32)}, ["chosen", "int32 [5, 3]", "int64"]),
    ({2: torch.zeros(4, 3, dtype=torch.int64)}, ["chosen", "int64 [4, 3]"]),
    ({3: torch.zeros(5, 2)}, ["weights", "float32 [5, 2]", "[5, 3]"]),
    ({4: torch.zeros(6, 96, 70, dtype=torch.int8)}, ["w1", "int8 [6, 96, 70]"]),
    ({6: torch.zeros(6, 96, 64, dtype=torch.int8)}, ["w3", "[6, 96, 80]"]),
    ({9: torch.zeros(6, 160, 4, dtype=torch.uint8)}, ["w2_scale", "[6, 160, 3]"]),
    ({0: torch.zeros(5, 64), 1: None}, ["x is float32 [5, 64]", "[T, 160]"]),
    ({11: 0.0}, ["limit is 0.0", "positive"]),
    ({12: torch.float64}, ["dtype", "float64"]),
]


@pytest.mark.parametrize(("changes", "words"), EXPERTS, ids=range(len(EXPERTS)))
def test_experts(changes, words):
    arguments = list(expert_arguments(5, "codes", torch.bfloat16))
    with pytest.raises(OperationError) as error:
        fp4_experts(*changed(arguments, changes))
    for word in ["fp4_experts", *words]:
        assert word in str(error.value)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: quantise_fp8(torch.ones(3, 33)), ["quantise_fp8", "[3, 33]", "multiple of 32"]),
        (lambda: quantise_fp8(torch.ones(32)), ["quantise_fp8", "[32]", "[T, n]"]),
        (lambda: quantise_fp8(torch.ones(1, 32).half()), ["quantise_fp8", "float16"]),
        (
            lambda: plain_linear(torch.ones(2, 8), torch.ones(4, 8)),
            ["plain_linear", "weight", "float32 [4, 8]", "bfloat16"],
        ),
        (
            lambda: plain_linear(torch.ones(2, 9), torch.ones(4, 8).bfloat16()),
            ["plain_linear", "x", "[2, 9]", "[T, 8]"],
        ),
    ],
    ids=range(5),
)
def test_other_operations(call, words):
    with pytest.raises(OperationError) as error:
        call()
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize(
    ("operation", "arguments"),
    [
        (quantise_fp8, (torch.randn(3, 64),)),
        (fp8_linear, tuple(fp8_arguments())),
        (plain_linear, (torch.randn(3, 40), torch.randn(5, 40).bfloat16())),
        (fp4_experts, expert_arguments(5, "codes", torch.bfloat16)),
    ],
    ids=lambda value: getattr(value, "_opname", ""),
)
def test_fakes_promise_what_comes(operation, arguments):
    torch.library.opcheck(operation, arguments, test_utils="test_faketensor")


def test_no_rows_give_no_rows():
    arguments = fp8_arguments()
    arguments[:2] = arguments[0][:0], arguments[1][:0]
    assert fp8_linear(*arguments).shape == (0, 96)
    none = list(expert_arguments(5, "codes", torch.bfloat16))
    none[:4] = [tensor[:0] for tensor in none[:4]]
    assert fp4_experts(*none).shape == (0, 3, 160)


REFERENCE = """
import torch
from vllm_deepinfer.ops import library, reference_linear
assert library.cpu_kernels() is None
reference_linear.plain_linear = lambda x, weight: "reference"
from vllm_deepinfer.ops import linear
print(linear._plain_reference(torch.ones(2, 32), torch.ones(3, 32).bfloat16()))
print(linear.plain_linear.has_kernel_for_dispatch_key("CPU"))
"""


def test_the_reference_runs_where_it_is_asked_for():
    environ = {**os.environ, "DEEPINFER_REFERENCE_OPS": "1"}
    ran = subprocess.run(
        [sys.executable, "-c", REFERENCE], env=environ, capture_output=True, text=True, timeout=120
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split() == ["reference", "False"]
