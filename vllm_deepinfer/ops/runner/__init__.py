"""vLLM's V2 model runner without Triton: a torch form of each kernel on the text-generation path.

    KERNELS    full kernel name -> implementation with the kernel's parameters
    REFUSED    full kernel name -> why there is none
    register() put both in place; call it from Platform.register_triton_kernel_overrides

An implementation takes the kernel's arguments under the kernel's names, tensors where the kernel
takes pointers, and changes the output tensors in place. It may ask for the launch grid by one more,
keyword-only parameter `grid`. Tuning parameters (block sizes) are accepted and mostly ignored.

The implementations are written for every torch device. Extents are exact on the host and bounds on
an accelerator (`extents.py`), so nothing synchronises there unless a docstring says so.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable

from vllm_deepinfer.ops.runner import (
    block_tables,
    gumbel,
    inputs,
    logprobs,
    penalties,
    prompt_embeds,
    sampling,
    thinking_budget,
    token_rules,
    updates,
)
from vllm_deepinfer.ops.runner.catalogue import REFUSED

__all__ = ["KERNELS", "REFUSED", "kernel_parameters", "register"]

KERNELS: dict[str, Callable[..., None]] = {
    **inputs.KERNELS,
    **updates.KERNELS,
    **block_tables.KERNELS,
    **sampling.KERNELS,
    **gumbel.KERNELS,
    **penalties.KERNELS,
    **token_rules.KERNELS,
    **logprobs.KERNELS,
    **thinking_budget.KERNELS,
    **prompt_embeds.KERNELS,
}

_registered = False


def kernel_parameters(name: str) -> tuple[str, ...]:
    """The parameters the kernel `name` must have upstream, in order."""
    parameters = inspect.signature(KERNELS[name]).parameters.values()
    return tuple(p.name for p in parameters if p.kind is not p.KEYWORD_ONLY)


def register() -> None:
    """Replace vLLM's kernels by these, and every other kernel of the runner by a refusal.

    Does nothing the second time. Kernels of the runner that are not implemented raise
    NotImplementedError with their name when launched.
    """
    global _registered
    if _registered:
        return
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        # It changes names that the runner's modules bind when they are imported: it goes first.
        import vllm.v1.worker.cpu.shm  # noqa: F401
    from vllm_deepinfer.ops.runner.launch import install

    install(KERNELS)
    _registered = True
