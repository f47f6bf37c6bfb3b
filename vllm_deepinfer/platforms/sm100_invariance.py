"""The option ``batch_invariant`` on SM100: every switch it depends on, set and then looked at.

vLLM's variable VLLM_BATCH_INVARIANT turns off what splits sums by size (split-K of cuBLAS by its
workspace, reduced-precision sums, TF32) and replaces torch's softmax, mean and batched products.
The model's own operations are this package's kernels, with tiles that no number of tokens changes.
Several of these can be undone by an environment or by another package of the process, silently; so
the worker looks at each before it serves.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from vllm_deepinfer.config import DeepInferConfig
from vllm_deepinfer.platforms.refusals import UnsupportedOptionError

VARIABLES = {"VLLM_BATCH_INVARIANT": "1", "VLLM_USE_FLASHINFER_SAMPLER": "0"}
"""What the workers of a batch-invariant engine must find in their environment.

FlashInfer's sampler draws from one generator for the batch, so a draw depends on the rows before.
"""
_set_here: dict[str, str | None] = {}


def set_switches(options: DeepInferConfig) -> None:
    """Set the variables before workers start, or take back what an earlier engine here set.

    Raises:
        UnsupportedOptionError: the user set one to the contrary, or asks for vLLM's switch without
            the option, which it needs to mean anything for this model.
    """
    if not options.batch_invariant:
        for name, before in list(_set_here.items()):
            _restore(name, before)
        if os.environ.get("VLLM_BATCH_INVARIANT", "0") not in ("", "0"):
            raise UnsupportedOptionError(
                f"VLLM_BATCH_INVARIANT is {os.environ['VLLM_BATCH_INVARIANT']} (allowed: unset, "
                "with the option batch_invariant true and model deepinfer): vLLM's class of this "
                "model has attention and experts that do not follow it. Set batch_invariant in "
                "--additional-config, or unset the variable."
            )
        return
    for name, value in VARIABLES.items():
        found = os.environ.get(name)
        if found is not None and found != value:
            raise UnsupportedOptionError(
                f"batch_invariant is true while {name}={found} (allowed: unset, {value}). Unset it."
            )
        if name not in _set_here:
            _set_here[name] = found
        os.environ[name] = value


def _restore(name: str, before: str | None) -> None:
    del _set_here[name]
    if before is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = before


@dataclass(frozen=True)
class Switch:
    """One thing that batch invariance depends on.

    name: what it is, in words.
    read: its state, from a worker's model runner.
    allowed: the states that hold.
    """

    name: str
    read: Callable[[Any], Any]
    allowed: tuple[Any, ...]


def broken_switches(runner: Any, switches: tuple[Switch, ...]) -> list[str]:
    """A clause for each switch that is not as it must be."""
    broken = []
    for switch in switches:
        found = switch.read(runner)
        if found not in switch.allowed:
            allowed = " or ".join(map(repr, switch.allowed))
            broken.append(f"{switch.name} is {found!r} (needed: {allowed})")
    return broken


def check_switches(runner: Any, switches: tuple[Switch, ...] | None = None) -> None:
    """Look at everything the promise depends on, in a worker with its model and caches.

    Args:
        runner: vLLM's V2 model runner, whose device is set and whose attention is initialised.
        switches: what to look at; by default ``worker_switches()``.

    Raises:
        UnsupportedOptionError: names each that is wrong.
    """
    broken = broken_switches(runner, worker_switches() if switches is None else switches)
    if broken:
        raise UnsupportedOptionError(
            f"batch_invariant is true, but {'; '.join(broken)}. Remove what sets it so, or leave "
            "batch_invariant out."
        )


def worker_switches() -> tuple[Switch, ...]:
    """Every switch, read by the names that vLLM, torch and this package keep them under."""
    import torch
    from vllm import envs
    from vllm.model_executor.determinism import batch_invariant

    from vllm_deepinfer.ops.triton import tiles

    products = torch.backends.cuda.matmul
    return (
        Switch("VLLM_BATCH_INVARIANT", lambda _: envs.VLLM_BATCH_INVARIANT, (True,)),
        Switch(
            "vLLM's replacement of torch's sums",
            lambda _: batch_invariant._batch_invariant_MODE,
            (True,),
        ),
        # Too little for partial sums: cuBLAS then has no split-K to choose.
        Switch(
            "CUBLAS_WORKSPACE_CONFIG",
            lambda _: os.environ.get("CUBLAS_WORKSPACE_CONFIG"),
            (":16:8",),
        ),
        Switch(
            "CUBLASLT_WORKSPACE_SIZE",
            lambda _: os.environ.get("CUBLASLT_WORKSPACE_SIZE"),
            ("1",),
        ),
        Switch(
            "sums of bfloat16 products in reduced precision",
            lambda _: _any(products.allow_bf16_reduced_precision_reduction),
            (False,),
        ),
        Switch("float32 products", lambda _: products.fp32_precision, ("ieee",)),
        Switch("tiles by number of tokens", lambda _: not tiles._batch_invariant, (False,)),
        Switch("operations without this package's kernel", _without_kernel, ((),)),
        Switch("attention of others", _foreign_attention, ((),)),
        Switch(
            "FlashInfer's sampler", lambda r: getattr(r.sampler, "use_flashinfer", False), (False,)
        ),
    )


def _any(value: bool | tuple[bool, ...]) -> bool:
    return any(value) if isinstance(value, tuple) else value


def _without_kernel(runner: Any) -> tuple[str, ...]:
    import torch

    from vllm_deepinfer.ops.library import NAMESPACE
    from vllm_deepinfer.ops.triton import OPERATIONS

    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    return tuple(name for name in OPERATIONS if not has_kernel(f"{NAMESPACE}::{name}", "CUDA"))


def _foreign_attention(runner: Any) -> tuple[str, ...]:
    """Backends of the model's layers that are not this package's."""
    backends = {group.backend for groups in runner.attn_groups for group in groups}
    names = {f"{backend.__module__}.{backend.__qualname__}" for backend in backends}
    return tuple(sorted(name for name in names if not name.startswith("vllm_deepinfer.")))
