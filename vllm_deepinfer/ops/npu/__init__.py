"""Operations on Ascend: torch_npu where one of its operators computes the operation, torch else.

Importing this package imports no torch_npu. ``register`` is for the worker, after its device is
set: importing torch_npu earlier would fix the visible devices.

- ``table`` says what computes each operation and why;
- ``calls`` holds the calls of torch_npu, ``layouts`` what they want moved;
- ``torch_forms`` are torch, but never wait for the device, so that graphs can be captured;
- ``selfcheck`` compares all of it with the reference before it is used.
"""

from __future__ import annotations

import torch

from vllm_deepinfer import envs
from vllm_deepinfer.config import OptionError
from vllm_deepinfer.ops.library import implement
from vllm_deepinfer.ops.npu.selfcheck import VendorMismatchError, check
from vllm_deepinfer.ops.npu.table import NATIVE, REFERENCES, Implementation, implementation

__all__ = ["VendorMismatchError", "implementations", "register"]

DISPATCH_KEY = "PrivateUse1"
_registered: dict[tuple, dict[str, str]] = {}


def implementations(native: bool = True, torch_ops: str = "") -> dict[str, Implementation]:
    """What computes each operation. With ``native``, imports torch_npu.

    Raises:
        ImportError: ``native``, and torch_npu is not installed or finds no CANN.
        OptionError: ``torch_ops`` names an operation that torch_npu does not compute anyway.
    """
    left = _names(torch_ops)
    unknown = sorted(left - set(NATIVE))
    if unknown:
        raise OptionError(
            f"npu_torch_ops names {', '.join(unknown)}; allowed: {', '.join(NATIVE)}, the "
            "operations that torch_npu computes."
        )
    return {name: implementation(name, native, name in left) for name in REFERENCES}


def _names(torch_ops: str) -> set[str]:
    return {name.strip() for name in torch_ops.split(",") if name.strip()}


def register(device: torch.device, native: bool = True, torch_ops: str = "") -> dict[str, str]:
    """Make these the operations' implementations for npu tensors; once a process.

    Args:
        device: the npu of this process, set already. Each operation computes a small case on it.
        native: use torch_npu. Without, torch alone: forms that graphs can capture.
        torch_ops: operations left to torch although torch_npu computes them, separated by commas:
            the option ``npu_torch_ops``.

    Returns:
        What computes each operation, in words.

    Raises:
        VendorMismatchError: operations are wrong on this device; names all of them.
        ImportError: ``native``, and torch_npu is not installed or finds no CANN.
        OptionError: ``torch_ops`` names an operation that torch_npu does not compute anyway.
        RuntimeError: another choice was registered in this process before.
    """
    choice = (native, frozenset(_names(torch_ops)), envs.reference_ops())
    if choice in _registered:
        return _registered[choice]
    if _registered:
        raise RuntimeError(
            f"operations for npu tensors are registered already, as {next(iter(_registered))}; a "
            "process has one choice of (native, torch_ops, reference_ops)."
        )
    if envs.reference_ops():
        computed_by = dict.fromkeys(REFERENCES, "torch reference (DEEPINFER_REFERENCE_OPS)")
    else:
        chosen = implementations(native, torch_ops)
        check(chosen, device)
        for operation, found in chosen.items():
            implement(operation, DISPATCH_KEY, found.compute)
        computed_by = {operation: found.computed_by for operation, found in chosen.items()}
    return _registered.setdefault(choice, computed_by)
