"""Compiles kernels for a GPU that is not there, by launching them on tensors that hold nothing.

A launch on tensors of torch's ``meta`` device chooses tiles, specialises arguments and compiles as
it would on the target; only the run on the device is left out. So what is measured here is what a
GPU would run.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

from triton.backends.nvidia.compiler import get_ptxas
from triton.runtime.jit import JITFunction

from vllm_deepinfer.ops.triton.targets import TARGETS, pretend_target

_SPILL_BYTES = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
_REGISTERS = re.compile(r"Used (\d+) registers")
_MATRIX = re.compile(r"\b(?:wgmma\.mma_async|tcgen05\.mma|mma\.sync)[\w.:]*")


@dataclass(frozen=True)
class CompiledKernel:
    """What one launch compiled to.

    Attributes:
        spill_bytes: per thread, stores and loads together.
        matrix_instructions: kinds of tensor-core instructions in the PTX, sorted.
        cubin_bytes: size of the machine code; never zero.
    """

    kernel: str
    target: str
    registers: int
    shared_bytes: int
    spill_bytes: int
    num_warps: int
    num_stages: int
    matrix_instructions: tuple[str, ...]
    cubin_bytes: int


def compile_launches(target: str, launch: Callable[[], Any]) -> list[CompiledKernel]:
    """Compile every kernel that ``launch`` launches, for ``target`` ("sm_90a" or "sm_100a").

    ``launch`` must use tensors on the ``meta`` device only.
    """
    launched = []
    run = JITFunction.run

    def compile_instead(self, *arguments, warmup, **keywords):
        compiled = run(self, *arguments, warmup=True, **keywords)
        launched.append((self.fn.__name__, compiled))
        return compiled

    with pretend_target(target), mock.patch.object(JITFunction, "run", compile_instead):
        launch()
    return [_describe(name, target, compiled) for name, compiled in launched]


def _describe(name: str, target: str, compiled: Any) -> CompiledKernel:
    ptx = compiled.asm["ptx"]
    # Seen with tiles that ask for more tensor memory than there is: code that does nothing.
    if "st.global" not in ptx:
        raise RuntimeError(f"{name} was compiled for {target} to code that stores nothing")
    usage = _assembler_usage(ptx, target, compiled.metadata.enable_fp_fusion)
    spills = _SPILL_BYTES.search(usage)
    registers = _REGISTERS.search(usage)
    if spills is None or registers is None:
        raise RuntimeError(f"ptxas reported no resource usage for {name} on {target}:\n{usage}")
    return CompiledKernel(
        kernel=name,
        target=target,
        registers=int(registers.group(1)),
        shared_bytes=compiled.metadata.shared,
        spill_bytes=int(spills.group(1)) + int(spills.group(2)),
        num_warps=compiled.metadata.num_warps,
        num_stages=compiled.metadata.num_stages,
        matrix_instructions=tuple(sorted(set(_MATRIX.findall(ptx)))),
        cubin_bytes=len(compiled.asm["cubin"]),
    )


@cache
def _assembler_usage(ptx: str, target: str, has_fp_fusion: bool) -> str:
    """What ``ptxas -v`` says; the compiled kernel itself tells only a driver with a GPU."""
    command = [get_ptxas(TARGETS[target]).path, "-v", "--regAllocOptLevel=2"]
    command += [f"--gpu-name={target}"] + ([] if has_fp_fusion else ["--fmad=false"])
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "kernel.ptx"
        source.write_text(ptx)
        command += [str(source), "-o", f"{source}.cubin"]
        return subprocess.run(command, check=True, capture_output=True, text=True).stderr
