"""Puts torch implementations, or refusals, in the place of vLLM's Triton kernels.

vLLM's own hook does the replacing (`vllm.triton_utils.dispatcher.register_kernels`). Two things it
lacks are added to its wrappers here: an implementation may ask for the launch grid, and launch
options such as `num_warps`, which mean nothing to torch, are dropped.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import vllm
import vllm.v1.worker.gpu_worker as gpu_worker
from vllm.triton_utils import triton
from vllm.triton_utils.dispatcher import KernelOverride, register_kernels
from vllm.triton_utils.importing import TritonPlaceholder
from vllm.utils.math_utils import next_power_of_2

from vllm_deepinfer.contract.releases import ContractError
from vllm_deepinfer.runner_kernels.catalogue import NO_REASON, find_kernels
from vllm_deepinfer.runner_kernels.forms import positional_names

# The folder that holds the package `vllm`.
_ROOT = Path(vllm.__path__[0]).parent
LAUNCH_OPTIONS = frozenset({"num_warps", "num_stages", "num_ctas", "maxnreg", "launch_pdl"})


class TorchKernel(KernelOverride):
    """A kernel's stand-in that is launched as `kernel[grid](*args, **kwargs)`."""

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        return partial(self._launch_on, grid)

    def _launch_on(self, grid: Any, *args: Any, **kwargs: Any) -> Any:
        arguments = {name: kwargs[name] for name in kwargs if name not in LAUNCH_OPTIONS}
        if self._wants_grid:
            arguments["grid"] = grid
        return self._impl(*args, **arguments)

    @classmethod
    def adopt(cls, override: KernelOverride) -> None:
        """Turn a wrapper that vLLM made, and spread to all its holders, into this class."""
        override._wants_grid = "grid" in inspect.signature(override.func).parameters
        override.__class__ = cls


def refusal(name: str, reason: str = NO_REASON) -> Callable[..., NoReturn]:
    """An implementation that raises NotImplementedError naming the kernel and what to change."""

    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError(
            f"vLLM launched the Triton kernel {name}, which vllm-deepinfer does not have in torch: "
            f"{reason}."
        )

    return refuse


def install(kernels: Mapping[str, Callable[..., Any]], reasons: Mapping[str, str]) -> None:
    """Register `kernels` and refuse every other kernel of the V2 runner, for its reason if any.

    Raises:
        vllm_deepinfer.contract.releases.ContractError: a kernel has other parameters than its
            stand-in.
    """
    if isinstance(triton, TritonPlaceholder):
        # Host code calls it to choose block sizes; vLLM's stand-in for Triton lacks it.
        triton.next_power_of_2 = next_power_of_2
    others = (name for name in find_kernels(_ROOT) if name not in kernels)
    refused = {name: refusal(name, reasons.get(name, NO_REASON)) for name in others}
    register_kernels({**kernels, **refused})
    wrappers = {name: _wrapper(name) for name in (*kernels, *refused)}
    for name, kernel in kernels.items():
        check_parameters(name, wrappers[name].arg_names, positional_names(kernel))
    for wrapper in wrappers.values():
        TorchKernel.adopt(wrapper)
    if hasattr(gpu_worker, "HAS_TRITON"):
        # From 0.33 a worker reads it once, to refuse the V2 runner where its kernels cannot run.
        gpu_worker.HAS_TRITON = True


def _wrapper(name: str) -> KernelOverride:
    module, attribute = name.rsplit(".", 1)
    return getattr(sys.modules[module], attribute)


def check_parameters(name: str, found: tuple[str, ...], expected: tuple[str, ...]) -> None:
    """Compare the parameters vLLM's kernel `name` has with those its stand-in expects.

    Raises:
        vllm_deepinfer.contract.releases.ContractError: they differ.
    """
    if found != expected:
        raise ContractError(
            f"vLLM's kernel {name} takes ({', '.join(found)}), expected ({', '.join(expected)}). "
            f"Install a vLLM this release of vllm-deepinfer was tested with."
        )
