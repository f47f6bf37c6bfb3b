"""Before an operation is used on a device, a small case of it must equal the CPU's result.

Vendors' operators differ in what their documents leave open: the order of scales, the rounding of a
scale, whose pre-mix is applied. Whatever is registered is checked, torch's own operators included,
so that a wrong one is an error at the start that names it, and not another text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from vllm_deepinfer.ops.npu.probes import PROBES
from vllm_deepinfer.ops.npu.table import REFERENCES, Implementation

BOUNDS = {torch.bfloat16: 3e-3, torch.float32: 1e-4}
"""Largest relative error, L2, of results of a dtype; other dtypes are codes, and equal."""
BOUNDS_OF = {"fp4_experts": 1e-2, "store_rotated": 1e-2}
"""Where a product or a rotation is quantised again, a few codes are their neighbours."""


class VendorMismatchError(RuntimeError):
    """An operator of the device does not compute what the model needs."""


def check(implementations: Mapping[str, Implementation], device: torch.device) -> None:
    """Compare each operation's small case on ``device`` with the reference's on the CPU.

    Raises:
        VendorMismatchError: at least one is wrong; all that are wrong are named.
    """
    wrong = {}
    for operation, chosen in implementations.items():
        problem = disagreement(operation, chosen.compute, device)
        if problem:
            wrong[operation] = f"{operation} ({chosen.computed_by}) {problem}"
    if wrong:
        raise VendorMismatchError(_refusal(wrong, implementations))


def _refusal(wrong: Mapping[str, str], implementations: Mapping[str, Implementation]) -> str:
    theirs = [operation for operation in wrong if implementations[operation].native]
    cure = (
        'leave these to torch, slower: --additional-config \'{"deepinfer": {"npu_torch_ops": '
        f'"{",".join(theirs)}"}}}}\''
        if len(theirs) == len(wrong)
        else "install versions of CANN and torch_npu whose torch operators are right"
    )
    problems = "\n".join(f"- {problem}" for problem in wrong.values())
    return (
        f"{len(wrong)} of {len(implementations)} operations are wrong on this device, so no text "
        f"would be right:\n{problems}\nReport it to the vendor, and {cure}."
    )


def disagreement(operation: str, compute: Callable, device: torch.device) -> str:
    """What is wrong with a result of the small cases, as a clause; empty if nothing is."""
    problems = (_case_problem(operation, compute, case(), device) for case in PROBES[operation])
    return next(filter(None, problems), "")


def _case_problem(
    operation: str, compute: Callable, arguments: list[Any], device: torch.device
) -> str:
    theirs = [x.to(device, copy=True) if isinstance(x, Tensor) else x for x in arguments]
    written = written_arguments(operation)
    wanted = _tensors(REFERENCES[operation](*arguments), arguments, written)
    try:
        found = _tensors(compute(*theirs), theirs, written)
        found = [x.cpu() for x in found]
    except Exception as failure:  # code of others, of a version not known here: anything may come
        return f"fails on a small case ({type(failure).__name__}: {failure})"
    if len(found) != len(wanted):
        return f"returns {len(found)} tensors instead of {len(wanted)}"
    for number, (result, right) in enumerate(zip(found, wanted, strict=True)):
        problem = _difference(result, right, BOUNDS_OF.get(operation))
        if problem:
            return problem if len(found) == 1 else f"{problem}, in result {number}"
    return ""


def written_arguments(operation: str) -> list[int]:
    """Numbers of the arguments that the operation writes to."""
    schema = getattr(torch.ops.vllm_deepinfer, operation).default._schema
    return [
        number
        for number, argument in enumerate(schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]


def _tensors(result: Any, arguments: list, written: list[int]) -> list[Tensor]:
    results = [] if result is None else [result] if isinstance(result, Tensor) else list(result)
    return [*results, *(arguments[number] for number in written)]


def _difference(found: Tensor, wanted: Tensor, bound: float | None) -> str:
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        return (
            f"returns {found.dtype} {list(found.shape)} instead of {wanted.dtype} "
            f"{list(wanted.shape)}"
        )
    error = relative_error(found, wanted)
    bound = BOUNDS.get(wanted.dtype, 0.0) if bound is None else bound
    if error <= bound:
        return ""
    return f"differs from the reference by {error:.1e} (allowed: {bound:.0e})"


def relative_error(found: Tensor, wanted: Tensor) -> float:
    """L2 of floats, infinite if they are not finite at the same places; of codes, the share that
    differs."""
    if wanted.dtype not in BOUNDS:
        differ = _bits(found) != _bits(wanted)
        return float(differ.double().mean()) if differ.numel() else 0.0
    found, wanted = found.double(), wanted.double()
    finite = wanted.isfinite()
    if not torch.equal(found[~finite], wanted[~finite]) or not bool(found[finite].isfinite().all()):
        return float("inf")
    found, wanted = found[finite], wanted[finite]
    return float((found - wanted).norm() / wanted.norm().clamp_min(1e-300))


def _bits(codes: Tensor) -> Tensor:
    return codes.contiguous().view(torch.uint8) if codes.is_floating_point() else codes
