"""Kernels compile to machine code for both targets, and what docs/ records is all of them.

If this fails, the first start on a GPU ends in a compiler's error, or docs/kernels-compiled.md
tells of other kernels than these. Only a few are compiled here; `make compile-kernels` compiles
them all. `wo_a` is, in each of its tiles: one of them spilled, and nobody had compiled it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from vllm_deepinfer.ops.triton import OPERATIONS

TARGETS = ("sm_90a", "sm_100a")
SAMPLE = ("quantise_fp8", "fp8_linear", "route", "select_rows")
DOCUMENT = Path(__file__).parents[2] / "docs" / "kernels-compiled.md"

# In a process of its own: this one must not take itself for a machine with a GPU.
COMPILE = """
import dataclasses, json, sys
from vllm_deepinfer.ops.triton.compile_only import compile_launches
from vllm_deepinfer.ops.triton.published_launches import published_launches

first, unquantised = {}, []
for launch in published_launches():
    first.setdefault(launch.operation, launch)
    if launch.shapes.startswith("attn.wo_a"):
        unquantised.append(launch)
sample = [first[name] for name in sys.argv[2:]] + unquantised
kernels = {target: [dataclasses.asdict(kernel) for launch in sample
                    for kernel in compile_launches(target, launch.run)]
           for target in sys.argv[1].split()}
print(json.dumps({"kernels": kernels, "operations": sorted(first)}))
"""


@pytest.fixture(scope="module")
def compiled() -> dict:
    pytest.importorskip("triton", reason="the kernels under test are Triton's")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    output = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", COMPILE, " ".join(TARGETS), *SAMPLE],
        env=environment, check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    return json.loads(output.splitlines()[-1])


@pytest.mark.parametrize("target", TARGETS)
def test_kernels_become_machine_code_without_spills(compiled, target):
    kernels = compiled["kernels"][target]
    assert {kernel["kernel"] for kernel in kernels} == {f"{name}_kernel" for name in SAMPLE}
    for kernel in kernels:
        assert kernel["cubin_bytes"] > 0 and kernel["registers"] > 0
        assert kernel["spill_bytes"] == 0


@pytest.mark.parametrize(("target", "kind"), [("sm_90a", "wgmma"), ("sm_100a", "mxf8f6f4")])
def test_quantised_products_run_on_tensor_cores(compiled, target, kind):
    linear = [k for k in compiled["kernels"][target] if k["kernel"] == "fp8_linear_kernel"]
    assert any(kind in name for name in linear[0]["matrix_instructions"])


def test_every_operation_is_launched_and_recorded(compiled):
    assert compiled["operations"] == sorted(OPERATIONS)
    recorded = DOCUMENT.read_text()
    for target in TARGETS:
        section = recorded.split(f"## {target}\n")[1].split("\n## ")[0]
        named = {line.split("|")[1].strip() for line in section.splitlines() if "_kernel`" in line}
        assert named == set(OPERATIONS), f"run make compile-kernels: {target}"
