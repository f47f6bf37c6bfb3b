"""vLLM's V2 model runner without Triton: a torch form of each kernel that serving can launch.

    KERNELS    full kernel name -> implementation with the kernel's parameters
    REFUSED    full kernel name -> why there is none
    register() put both in place; call it before a model runner is made

Both tables are those of the installed vLLM; `kernels_of` and `refused_kernels` have the ones of any
supported version.

An implementation takes the kernel's arguments under the kernel's names, tensors where the kernel
takes pointers, and changes the output tensors in place. It may ask for the launch grid by one more,
keyword-only parameter `grid`. Tuning parameters (block sizes) are accepted and mostly ignored.

The implementations are written for every torch device. Extents are exact on the host and bounds on
an accelerator (`extents.py`), so nothing synchronises there unless a docstring says so.
"""

from __future__ import annotations

from functools import cache

import vllm

from vllm_deepinfer.contract.releases import later_releases, parse_version
from vllm_deepinfer.runner_kernels import (
    block_tables,
    drafting,
    gumbel,
    inputs,
    logprobs,
    penalties,
    sampling,
    thinking_budget,
    token_rules,
    updates,
)
from vllm_deepinfer.runner_kernels.catalogue import refused_kernels
from vllm_deepinfer.runner_kernels.forms import Form, positional_names

__all__ = [
    "KERNELS",
    "REFUSED",
    "VERSION",
    "kernel_parameters",
    "kernels_of",
    "refused_kernels",
    "register",
]

_MODULES = (
    inputs,
    updates,
    block_tables,
    sampling,
    gumbel,
    penalties,
    token_rules,
    logprobs,
    thinking_budget,
    drafting,
)


@cache
def kernels_of(version: tuple[int, int]) -> dict[str, Form]:
    """Full kernel name -> implementation, for vLLM `version` (major, minor). A version newer than
    those this package knows gets the newest forms; `register` then checks their parameters."""
    tables = [module.KERNELS for module in _MODULES]
    for release in later_releases(version):
        later = [getattr(module, "KERNELS_SINCE", {}) for module in _MODULES]
        tables += [forms.get(release.version, {}) for forms in later]
    return {name: form for table in tables for name, form in table.items()}


VERSION = parse_version(vllm.__version__)
KERNELS = kernels_of(VERSION)
REFUSED = refused_kernels(VERSION)

_registered = False


def kernel_parameters(name: str, version: tuple[int, int] = VERSION) -> tuple[str, ...]:
    """The parameters the kernel `name` must have in vLLM `version`, in order."""
    return positional_names(kernels_of(version)[name])


def register() -> None:
    """Replace vLLM's kernels by these, and every other kernel of the runner by a refusal.

    Does nothing the second time. Kernels of the runner that are not implemented raise
    NotImplementedError with their name when launched.

    Raises:
        vllm_deepinfer.contract.releases.ContractError: a kernel does not have the parameters
            expected of it.
    """
    global _registered
    if _registered:
        return
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        # It changes names that the runner's modules bind when they are imported: it goes first.
        import vllm.v1.worker.cpu.shm  # noqa: F401
    from vllm_deepinfer.runner_kernels.launch import install

    install(KERNELS, REFUSED)
    _registered = True
