"""The tiny model's forward pass on interpreted kernels, each compared with its reference.

Runs in the interpreter's process, where the operations have no C++ kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from triton_kernels.errors import relative_error

MODEL = Path(__file__).parents[1] / "data" / "v41_tiny"


def as_tensors(result: Any, arguments: tuple) -> list[torch.Tensor]:
    """What an operation computed: its results and every byte of the caches it was given."""
    results = [] if result is None else [result] if isinstance(result, torch.Tensor) else result
    return [*results, *(x for x in arguments if is_cache(x))]


def is_cache(argument: Any) -> bool:
    return isinstance(argument, torch.Tensor) and argument.dtype == torch.uint8


def compared(ours: Callable, reference: Callable, errors: list[tuple[str, float]]) -> Callable:
    """``ours``, noting the dtype and error of each of its results."""

    def compute(*arguments, **keywords):
        before = tuple(x.clone() if is_cache(x) else x for x in arguments)
        wanted = as_tensors(reference(*before, **keywords), before)
        result = ours(*arguments, **keywords)
        for found, right in zip(as_tensors(result, arguments), wanted, strict=True):
            errors.append((str(found.dtype), relative_error(found, right)))
        return result

    return compute


def run_model(target: str, token_ids: list[int]) -> dict[str, list[tuple[str, float]]]:
    """By operation, dtype and relative error of everything it computed in one prefill."""
    from vllm_deepinfer.models.deepseek_v41.standalone import Chunk, StandaloneModel
    from vllm_deepinfer.ops import library
    from vllm_deepinfer.ops.numerics import Numerics
    from vllm_deepinfer.ops.triton import OPERATIONS, launcher
    from vllm_deepinfer.ops.triton.targets import pretend_target

    model = StandaloneModel.load(MODEL, Numerics(), max_tokens=128)
    errors: dict[str, list[tuple[str, float]]] = {name: [] for name in OPERATIONS}
    for name in OPERATIONS:
        reference = reference_of(name)
        library.implement(name, "CPU", compared(launcher(name), reference, errors[name]))
    with pretend_target(target):
        model.logits(model.compute([Chunk(0, token_ids)]))
    return errors


def reference_of(name: str) -> Callable:
    """The reference that the operation was defined with."""
    operation = getattr(torch.ops.vllm_deepinfer, name).default
    key = torch._C.DispatchKey.CompositeExplicitAutograd
    return lambda *arguments, **keywords: operation._op_dk(key, *arguments, **keywords)
