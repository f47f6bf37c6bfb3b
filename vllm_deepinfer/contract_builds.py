"""What the CPU platform relies on where vLLM was not built for CPUs; contract.py has the forms."""

from __future__ import annotations

from vllm_deepinfer.compat import Symbol, overrides

BUILDS: tuple[Symbol, ...] = (
    overrides("vllm.platforms.cpu", "CpuPlatform.import_kernels", "cls"),
)
