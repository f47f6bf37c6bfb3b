"""What ops/runner relies on to put its kernels in the place of vLLM's; kernels.py has these."""

from __future__ import annotations

from vllm_deepinfer.contract.symbols import Symbol, calls, has_fields, overrides, uses

_DISPATCHER = "vllm.triton_utils.dispatcher"

RUNNER: tuple[Symbol, ...] = (
    calls(_DISPATCHER, "register_kernels", "overrides"),
    # Its wrappers are given another class, which launches them on a grid.
    overrides(_DISPATCHER, "KernelOverride.__getitem__", "self", "grid"),
    has_fields(_DISPATCHER, "KernelOverride", "_impl", "arg_names", "func"),
    uses("vllm.triton_utils", "triton"),
    uses("vllm.triton_utils.importing", "TritonPlaceholder"),
    calls("vllm.utils.math_utils", "next_power_of_2", "n"),
    uses("vllm.v1.worker.gpu_worker", "HAS_TRITON", since=(0, 33)),
    # Imported first for what it changes in this module, among others.
    uses("vllm.v1.worker.cpu.shm", "gpu_buffer_utils"),
)
