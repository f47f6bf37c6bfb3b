"""Operations of the model under ``torch.ops.vllm_deepinfer``: how one is defined and refused.

An operation is one schema with

- a reference in plain torch, which every device without an implementation of its own runs;
- a fake, which gives shapes and dtypes alone;
- an implementation per platform: C++ on the CPU, registered here when the extension is built;
  others join with ``implement``.

All of them refuse the same arguments with the same sentence.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from vllm_deepinfer import envs
from vllm_deepinfer.log import get_logger, info_once, warn_once
from vllm_deepinfer.ops.tile_unit_check import check_tile_unit

logger = get_logger(__name__)

NAMESPACE = "vllm_deepinfer"
EXTENSION = "vllm_deepinfer._kernels"
_LIBRARY = torch.library.Library(NAMESPACE, "FRAGMENT")


class OperationError(ValueError):
    """An argument of an operation is not allowed."""


@cache
def cpu_kernels() -> ModuleType | None:
    """The C++ kernels of the CPU platform; ``None``, said once, where they are not used.

    A built extension that cannot be loaded is an error, not a reason to go without; and so is a
    version of it that was asked for and cannot run, or a tile unit that computes something else.
    """
    if envs.reference_ops():
        info_once(logger, "DEEPINFER_REFERENCE_OPS: operations are computed by the torch reference")
        return None
    if importlib.util.find_spec(EXTENSION) is None:
        warn_once(
            logger,
            f"{EXTENSION} is not built: operations are computed by the torch reference, many times "
            "slower. Install this package where a C++ compiler works.",
        )
        return None
    kernels = importlib.import_module(EXTENSION)
    choose_version(kernels, envs.cpu_kernels())
    return kernels


def choose_version(kernels: ModuleType, version: str | None) -> None:
    """Run the ``version`` of the kernels that was asked for; otherwise the best one stays.

    Raises:
        ValueError: this processor cannot run it.
        TileUnitError: the version is for a tile unit, which computes something else.
    """
    allowed = kernels.available_isas().split()
    if version is not None:
        if version not in allowed:
            raise ValueError(
                f"DEEPINFER_CPU_KERNELS={version!r} is not a version that this processor can run. "
                f"Allowed: {', '.join(allowed)}; unset it for the best of them."
            )
        kernels.choose_isa(version)
    if kernels.isa() == "amx":
        check_tile_unit(kernels)


def define(
    schema: str,
    reference: Callable[..., Any],
    fake: Callable[..., Any],
    cpu: Callable[..., Any] | None = None,
) -> torch._ops.OpOverload:
    """Define ``vllm_deepinfer::<schema>`` and return it, ready to be called.

    Args:
        schema: torch's notation, such as ``"scale(Tensor x, float factor) -> Tensor"``.
        reference: what the operation computes, for every device.
        fake: empty results of the right shape and dtype; checks arguments too.
        cpu: the implementation over ``cpu_kernels()``; used when they are there.
    """
    name = schema.partition("(")[0]
    _LIBRARY.define(schema)
    _LIBRARY.impl(name, reference, "CompositeExplicitAutograd")
    torch.library.register_fake(f"{NAMESPACE}::{name}", fake, lib=_LIBRARY)
    if cpu is not None and cpu_kernels() is not None:
        implement(name, "CPU", cpu)
    return getattr(getattr(torch.ops, NAMESPACE), name).default


def implement(name: str, dispatch_key: str, implementation: Callable[..., Any]) -> None:
    """Give the operation ``name`` an implementation for a device, such as ``"CUDA"``."""
    _LIBRARY.impl(name, implementation, dispatch_key)


def refuse(operation: str, argument: str, found: Any, allowed: str) -> OperationError:
    """The error for an argument: names it, its shape and dtype (or value), and what is allowed."""
    if isinstance(found, Tensor):
        dtype = str(found.dtype).removeprefix("torch.")
        found = f"{dtype} {list(found.shape)} on {found.device}" + (
            "" if found.is_contiguous() else ", not contiguous"
        )
    return OperationError(f"{operation}: {argument} is {found}; allowed: {allowed}.")


def require(
    operation: str,
    argument: str,
    tensor: Tensor,
    dtypes: tuple[torch.dtype, ...],
    shape: tuple[int | str | None, ...],
    allowed: str | None = None,
    contiguous: bool = False,
) -> None:
    """Refuse a tensor of another dtype or shape.

    A name (or None) in ``shape`` takes any size: ``("T", 64)`` is any number of rows of 64.
    ``allowed`` says what is asked for where dtypes and shape do not; write it so that a call that
    passes does not build it.
    """
    if tensor.dtype in dtypes and (not contiguous or tensor.is_contiguous()):
        found = tensor.shape
        if found == shape or _fits(found, shape):
            return
    if allowed is None:
        names = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        sizes = ", ".join(map(str, shape))
        allowed = f"{names} [{sizes}]" + (", contiguous" if contiguous else "")
    raise refuse(operation, argument, tensor, allowed)


def _fits(found: torch.Size, shape: tuple[int | str | None, ...]) -> bool:
    if len(found) != len(shape):
        return False
    return all(
        size == wanted or isinstance(wanted, str) for size, wanted in zip(found, shape, strict=True)
    )
