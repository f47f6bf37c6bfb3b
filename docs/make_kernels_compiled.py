"""Writes docs/kernels-compiled.md: what every Triton kernel compiles to, with no GPU.

    python docs/make_kernels_compiled.py            (make compile-kernels)

Some minutes when the compiler's cache is empty. Fails if a kernel of a decode step spills
registers.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import triton
from triton.backends.nvidia.compiler import get_ptxas

from vllm_deepinfer.ops.triton.compile_only import CompiledKernel, compile_launches
from vllm_deepinfer.ops.triton.published_launches import Launch, published_launches
from vllm_deepinfer.ops.triton.targets import TARGETS

OUTPUT = Path(__file__).with_name("kernels-compiled.md")
TEXT = """# Triton kernels, compiled

What the kernels in `vllm_deepinfer/ops/triton` compile to, written by `make compile-kernels` on a
machine without a GPU: Triton {triton}, ptxas {ptxas}. Each line is one launch, specialised as it
would be on the GPU. Launches are the calls that the published model makes, target and draft stages,
found by taking steps of it without values: by the module that calls, the shapes of its matrices and
which switches are on. Matrix products are there for steps of 1, 32, 64 and 2048 tokens, everything
else for 64. The model never calls `load_rows`; whoever looks into a cache does.

**Compiled is not run.** No kernel has run on a GPU, and nothing here says how fast one is. That
results are right rests on `tests/triton_kernels`, where Triton's interpreter runs each kernel
against the operation's reference. What the interpreter cannot show:

- how tensor cores round. Products of codes and power-of-two scales are exact, and both targets are
  asked for float32 sums. SM100 multiplies scaled codes in one instruction
  (`kind::mxf8f6f4.block_scale`); for SM90 Triton turns them into bfloat16 first, which is exact.
- races between threads, and the approximations of `exp` on a GPU.
- speed. Tile sizes (`tiles.py`) are a static table by target and shape; tuning needs hardware.

Spilled bytes are per thread, stores and loads together. Shared memory is in bytes per program.
No kernel of a decode step spills.
"""
COLUMNS = (
    "operation", "launch", "kernel", "registers", "shared", "spilled", "warps", "stages",
    "tensor cores",
)  # fmt: skip
SHORT = {
    "wgmma.mma_async": "wgmma bf16",
    "kind::mxf8f6f4": "tcgen05 mxf8f6f4, block scale",
    "kind::f16": "tcgen05 bf16",
    "mma.sync": "mma.sync bf16",
}


def matrix_kind(kernel: CompiledKernel) -> str:
    kinds = {
        name
        for found in kernel.matrix_instructions
        for part, name in SHORT.items()
        if part in found
    }
    return ", ".join(sorted(kinds)) or "-"


def table(target: str, launches: list[Launch]) -> tuple[list[str], list[str]]:
    """Lines of one target's table, and what spills in it though it is hot."""
    lines = [
        f"## {target}",
        "",
        "| " + " | ".join(COLUMNS) + " |",
        "| --- | --- | --- | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    spilling = []
    for launch in launches:
        for kernel in compile_launches(target, launch.run):
            cells = (
                launch.operation, launch.shapes, f"`{kernel.kernel}`", kernel.registers,
                kernel.shared_bytes, kernel.spill_bytes, kernel.num_warps, kernel.num_stages,
                matrix_kind(kernel),
            )  # fmt: skip
            lines.append("| " + " | ".join(map(str, cells)) + " |")
            if launch.hot and kernel.spill_bytes:
                spilling.append(f"{kernel.kernel} on {target}, {launch.shapes}")
        print(f"{target}: {launch.operation}, {launch.shapes}", flush=True)
    return lines, spilling


def main() -> None:
    warnings.filterwarnings("ignore", message="TRITON_DEFAULT_FP_FUSION")
    text = TEXT.format(triton=triton.__version__, ptxas=get_ptxas(100).version)
    spilling = []
    for target in TARGETS:
        lines, found = table(target, published_launches())
        text += "\n" + "\n".join(lines) + "\n"
        spilling += found
    if spilling:
        sys.exit("Registers spill in kernels of a decode step: " + "; ".join(spilling))
    OUTPUT.write_text(text)
    print(f"Wrote {OUTPUT}")


if __name__ == "__main__":
    main()
