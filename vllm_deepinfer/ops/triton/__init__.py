"""Triton kernels of the operations, for NVIDIA GPUs of the SM90 and SM100 families.

One operation a module, named as the operation; a module holds its kernel and the function that
launches it, which takes and returns what the operation does. Importing this package imports no
Triton. ``register`` is for workers of the SM100 platform that run this package's class of the
model: it runs on the device, so it must not be called in a process that forks workers.

Row and token numbers are taken as they are: to look at them on the CPU would mean to wait for the
device. A number that lies outside its cache or table reads or writes other memory.

Evidence: the tests compare every kernel with the operation's reference in Triton's interpreter;
docs/kernels-compiled.md records what each compiles to for sm_90a and
sm_100a. None has run on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

OPERATIONS = (
    "add_memory",
    "candidate_blocks",
    "clamped_swiglu",
    "engram_rows",
    "expand_streams",
    "fp4_experts",
    "fp8_linear",
    "index_scores",
    "load_rows",
    "load_table_rows",
    "mix_streams",
    "plain_linear",
    "pool_pairs",
    "quantise_fp8",
    "rms_norm",
    "rotate",
    "route",
    "select_rows",
    "sink_attention",
    "store_rotated",
    "stream_mixes",
    "sum_experts",
)
"""Operations with a kernel here. ``rope_angles``, a table's worth of cosines, is left to torch."""


def launcher(operation: str) -> Callable:
    """The function that computes ``operation`` with the kernel of this package. Imports Triton."""
    return getattr(import_module(f"{__name__}.{operation}"), operation)


def register(batch_invariant: bool = False) -> None:
    """Make these kernels the operations' implementation for CUDA tensors. Call it once.

    Where ``vendor`` names a better one that is installed and right, that. With ``batch_invariant``,
    these alone, and how rows are computed does not depend on how many there are.
    """
    from vllm_deepinfer.ops.library import implement
    from vllm_deepinfer.ops.triton.tiles import set_batch_invariant

    set_batch_invariant(batch_invariant)
    implementations = {operation: launcher(operation) for operation in OPERATIONS}
    if not batch_invariant:
        implementations.update(_from_vendors(implementations))
    for operation, implementation in implementations.items():
        implement(operation, "CUDA", implementation)


def _from_vendors(ours: dict[str, Callable]) -> dict[str, Callable]:
    import torch

    from vllm_deepinfer.ops.triton.targets import architecture
    from vllm_deepinfer.ops.triton.vendor import VENDORS, choose

    device = torch.device("cuda")
    return {
        vendor.operation: choose(vendor, ours[vendor.operation], device)
        for vendor in VENDORS
        if architecture() in vendor.architectures
    }
