"""The versions for a tile unit (AMX) add in the order that kernels/linear.h states, with its range.

One of them is compiled for the processor's unit, one for an emulated unit from the same source; all
other tests of the kernels run the latter, too. If this fails, a machine with AMX computes something
else than what is proved here, or a wrong unit is not refused at the start.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from kernels.conftest import ISAS, TILED, kernels
from kernels.quantised_operands import same_bits

from vllm_deepinfer.ops import formats
from vllm_deepinfer.ops.library import choose_version
from vllm_deepinfer.ops.linear import fp8_linear, plain_linear
from vllm_deepinfer.ops.tile_unit_check import TileUnitError, check_tile_unit

pytestmark = pytest.mark.skipif(not TILED, reason="the emulated unit's version needs AVX-512")

INSTRUCTIONS = ("ldtilecfg", "tilezero", "tileloadd", "tdpbf16ps", "tilestored", "tilerelease")
SMALLEST_NORMAL = 2.0**-126


@pytest.fixture(params=TILED)
def tiled(request):
    own = kernels.isa()
    kernels.choose_isa(request.param)
    yield request.param
    kernels.choose_isa(own)


def test_the_extension_holds_the_instructions():
    """A compiler that emits none would leave an AMX machine with a version that cannot be."""
    objdump = shutil.which("objdump")
    assert objdump, "objdump comes with the compiler that built the extension"
    shown = subprocess.run(
        [objdump, "-d", "--no-show-raw-insn", Path(kernels.__file__)],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    for instruction in INSTRUCTIONS:
        assert f"\t{instruction} " in shown or f"\t{instruction}\n" in shown, instruction


def sum_by_tiles(rows, weight):
    """``rows @ weight.T`` in the order of linear.h. In float64 each step is exact, then rounded."""
    pairs = [
        t.double().unflatten(1, (-1, 16, 2)).permute(1, 2, 3, 0)
        for t in (rows.unsqueeze(0).flatten(0, 1), weight)
    ]
    total = torch.zeros(len(rows), len(weight))
    for row_chunk, weight_chunk in zip(*pairs, strict=True):
        halves = torch.zeros(2, *total.shape)
        for row_pair, weight_pair in zip(row_chunk, weight_chunk, strict=True):
            products = row_pair.unsqueeze(2) * weight_pair.unsqueeze(1)
            halves = (halves.double() + products).float()
        total = total + (halves[0] + halves[1])
    return total


@pytest.mark.parametrize("rows", [1, 5, 16, 40])
def test_sums_come_in_the_stated_order(tiled, rows):
    x, weight = (torch.randn(count, 640).to(torch.bfloat16) for count in (rows, 37))
    for t in (x, weight):
        t[t.abs() < 2**-9] = 0  # so that float64 holds a sum and a product exactly
    found = plain_linear(x, weight)
    assert same_bits(found, sum_by_tiles(x, weight))
    kernels.choose_isa("avx512")
    assert not same_bits(found, plain_linear(x, weight)), "no sum here shows the order"


@pytest.mark.parametrize(
    ("left", "right"), [(2.0**-70, 2.0**-70), (2.0**-130, 2.0**60), (2.0**60, 2.0**-130)], ids=str
)
def test_subnormal_inputs_and_sums_are_zero(tiled, left, right):
    x, weight = (torch.full((3, 32), value).to(torch.bfloat16) for value in (left, right))
    assert same_bits(plain_linear(x, weight), torch.zeros(3, 3))
    assert plain_linear(x * 2.0**20, weight * 2.0**20).all(), "normal ones are not"


@pytest.mark.parametrize("rows", [1, 247])
def test_every_scale_is_folded_into_every_code_exactly(tiled, rows):
    """Scales up to 2**119 overflow with no code. Products that bfloat16 cannot hold are zero.

    Row c picks one column of chunk c, whose scale is the byte c.
    """
    codes = torch.arange(256, dtype=torch.uint8)
    codes = codes[(codes & 0x7F) != 0x7F].view(torch.float8_e4m3fn)
    weight = codes.unsqueeze(1).repeat(1, 32 * 247).contiguous()
    scale = torch.arange(247, dtype=torch.uint8).repeat(8, 1)
    x = torch.zeros(247, 32 * 247, dtype=torch.bfloat16)
    x[torch.arange(247), 32 * torch.arange(247) + torch.arange(247) % 32] = 1.0
    part = slice(247 - rows, 247)
    found = fp8_linear(x[part].contiguous(), None, weight, scale, torch.float32)
    wanted = formats.dequantise_fp8_blocks(weight, scale)[:, ::32].T[part]
    wanted = torch.where(wanted.abs() < SMALLEST_NORMAL, 0.0, wanted)
    assert torch.equal(found, wanted)


class WrongUnit:
    """The kernels, but for what `spoil` does to products ``[rows, outputs]`` of a tiled version."""

    def __init__(self, spoil):
        self.spoil = spoil

    def __getattr__(self, name):
        return getattr(kernels, name)

    def linear(self, *arguments):
        kernels.linear(*arguments)
        if kernels.isa() in TILED:
            rows, outputs, address = arguments[3], arguments[9], arguments[10]
            memory = (ctypes.c_float * (rows * outputs)).from_address(address)
            self.spoil(torch.frombuffer(memory, dtype=torch.float32).view(rows, outputs))


def spoil_one(out):
    out[-1, -1] += 0.01 * out.norm()


def spoil_by_nan(out):
    out[0, 0] = float("nan")


def spoil_lone_rows(out):
    if len(out) == 1:
        out[0, 3] = out[0, 3].nextafter(torch.tensor(torch.inf))


def test_a_right_unit_passes_and_the_version_stays(tiled):
    own = kernels.isa()
    check_tile_unit(kernels, tiled)
    assert kernels.isa() == own


@pytest.mark.parametrize("spoil", [spoil_one, spoil_by_nan, spoil_lone_rows])
def test_a_wrong_unit_is_refused_with_the_way_out(tiled, spoil):
    with pytest.raises(TileUnitError, match="Set DEEPINFER_CPU_KERNELS=avx512"):
        check_tile_unit(WrongUnit(spoil), tiled)


def test_an_emulated_unit_is_never_chosen_unasked():
    assert kernels.isa() == [isa for isa in ISAS if isa != "emulated_amx"][-1]


def test_the_version_asked_for_runs():
    code = "from vllm_deepinfer.ops.library import cpu_kernels; print(cpu_kernels().isa())"
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "DEEPINFER_CPU_KERNELS": "portable"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert ran.stdout.split()[-1] == "portable"


def test_a_version_that_cannot_run_is_refused_with_those_that_can():
    own = kernels.isa()
    with pytest.raises(ValueError, match="DEEPINFER_CPU_KERNELS='avx1024'.*portable, avx2, avx512"):
        choose_version(kernels, "avx1024")
    assert kernels.isa() == own
