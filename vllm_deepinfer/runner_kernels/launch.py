"""Puts torch implementations, or refusals, in the place of vLLM's Triton kernels.

vLLM's own hook does the replacing (`vllm.triton_utils.dispatcher.register_kernels`). Two things it
lacks are added to its wrappers here: an implementation may ask for the launch grid, and launch
options such as `num_warps`, which mean nothing to torch, are dropped.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import vllm.v1
import vllm.v1.worker.gpu_worker as gpu_worker
from vllm.triton_utils import triton
from vllm.triton_utils.dispatcher import KernelOverride, register_kernels
from vllm.triton_utils.importing import TritonPlaceholder
from vllm.utils.math_utils import next_power_of_2

from vllm_deepinfer.compat import ContractError
from vllm_deepinfer.runner_kernels.catalogue import NO_REASON, PACKAGE
from vllm_deepinfer.runner_kernels.forms import positional_names

LAUNCH_OPTIONS = frozenset({"num_warps", "num_stages", "num_ctas", "maxnreg", "launch_pdl"})
_JIT_FUNCTION = re.compile(r"^@triton\.jit(?:\(.*?\))?\ndef (\w+)", re.MULTILINE | re.DOTALL)
_SUBSCRIPTED = re.compile(r"\b(\w+)\[")


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


def find_kernels() -> list[str]:
    """Full names of the Triton kernels below `PACKAGE` that its code launches.

    Functions that only kernels call are not among them. Works on the source text, because without
    Triton a kernel is a plain function like any other.
    """
    root = Path(vllm.v1.__path__[0]) / "worker" / "gpu"
    functions: list[tuple[str, str]] = []
    launched: set[str] = set()
    for path in sorted(root.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if "@triton.jit" not in text:
            continue
        module = ".".join((PACKAGE, *path.relative_to(root).with_suffix("").parts))
        functions += ((module, name) for name in _JIT_FUNCTION.findall(text))
        launched.update(_SUBSCRIPTED.findall(text))
    return [f"{module}.{name}" for module, name in functions if name in launched]


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
        vllm_deepinfer.compat.ContractError: a kernel has other parameters than its stand-in.
    """
    if isinstance(triton, TritonPlaceholder):
        # Host code calls it to choose block sizes; vLLM's stand-in for Triton lacks it.
        triton.next_power_of_2 = next_power_of_2
    others = (name for name in find_kernels() if name not in kernels)
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
        vllm_deepinfer.compat.ContractError: they differ.
    """
    if found != expected:
        raise ContractError(
            f"vLLM's kernel {name} takes ({', '.join(found)}), expected ({', '.join(expected)}). "
            f"Install a vLLM this release of vllm-deepinfer was tested with."
        )
