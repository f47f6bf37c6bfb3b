"""The part of the contract that runner_kernels states itself: the Triton kernels it replaces.

Their parameters are those of the forms there, so they are not written down again.
"""

from __future__ import annotations

from pathlib import Path

from vllm_deepinfer.contract.releases import Version
from vllm_deepinfer.contract.symbols import Symbol, kernel


def kernel_lines(version: Version) -> tuple[Symbol, ...]:
    """A line for each kernel that has a form, for vLLM `version`. Imports the installed vLLM."""
    from vllm_deepinfer.runner_kernels import kernel_parameters, kernels_of

    lines = []
    for name in kernels_of(version):
        module, _, attribute = name.rpartition(".")
        lines.append(kernel(module, attribute, *kernel_parameters(name, version)))
    return tuple(lines)


def unknown_kernels(root: Path, version: Version) -> list[str]:
    """Full names of kernels that the source below `root` launches, and that have neither a form nor
    a reason why there is none. Imports the installed vLLM."""
    from vllm_deepinfer.runner_kernels import kernels_of, refused_kernels
    from vllm_deepinfer.runner_kernels.catalogue import find_kernels

    known = {*kernels_of(version), *refused_kernels(version)}
    return [name for name in find_kernels(root) if name not in known]
