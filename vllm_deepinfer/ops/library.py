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
from collections.abc import Callable, Sequence
from functools import cache
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from vllm_deepinfer import envs
from vllm_deepinfer.log import get_logger, info_once, warn_once

logger = get_logger(__name__)

NAMESPACE = "vllm_deepinfer"
EXTENSION = "vllm_deepinfer._kernels"
_LIBRARY = torch.library.Library(NAMESPACE, "FRAGMENT")


class OperationError(ValueError):
    """An argument of an operation is not allowed."""


@cache
def cpu_kernels() -> ModuleType | None:
    """The C++ kernels of the CPU platform; ``None``, said once, where they are not used.

    A built extension that cannot be loaded is an error, not a reason to go without.
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
    return importlib.import_module(EXTENSION)


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
    dtypes: Sequence[torch.dtype],
    shape: Sequence[int | None],
    allowed: str,
) -> None:
    """Refuse a tensor of another dtype or shape; ``None`` in ``shape`` takes any size.

    ``allowed`` says in words what is asked for, such as ``"bfloat16 [T, 64]"``.
    """
    if tensor.dtype in dtypes and tensor.dim() == len(shape):
        for size, wanted in zip(tensor.shape, shape, strict=True):
            if wanted is not None and size != wanted:
                break
        else:
            return
    raise refuse(operation, argument, tensor, allowed)
