"""Kernels of others that are used instead of this package's, where they are installed and agree.

A table, not a search: one entry an operation, with what it takes. Before an entry is used it
computes one small case on the device, which must equal the torch reference; otherwise a warning
says by how much it is off, and the kernel of this package stays.

What has no entry, and why:

- attention (FlashMLA): reads the 584-byte rows of upstream's cache, not the 528- and 288-byte rows
  the model keeps here;
- indexer scores (DeepGEMM's mqa_logits): without the reference's intermediate roundings, so that
  another 2 to 17 rows of about 150 would be chosen;
- experts (DeepGEMM's grouped products): take slots permuted and padded in another layout, and leave
  the SwiGLU and the second quantisation to more launches; whether that is faster is not known here;
- quantisers, streams and engram (tile-kernels): bound by memory as these are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from vllm_deepinfer.log import get_logger, info_once, warn_once
from vllm_deepinfer.ops import reference_linear
from vllm_deepinfer.ops.formats import FP8_BLOCK, quantise_fp8_blocks

logger = get_logger(__name__)

TOLERANCE = 2e-3
"""Relative error, L2, between a bfloat16 result and the reference's."""
MIN_TOKENS = 128
"""Below, laying out scales for DeepGEMM costs more launches than its product saves."""


@dataclass(frozen=True)
class Vendor:
    """A kernel of others for an operation.

    Attributes:
        architectures: compute capabilities, 90 and 100, it is for.
        load: imports it and returns it, with the operation's arguments; raises ImportError where it
            is not installed.
        fits: whether a call's arguments are such as it takes; others go to this package's kernel.
        probe: arguments of a small case that fits, on a device.
        reference: the operation in plain torch.
    """

    operation: str
    name: str
    architectures: tuple[int, ...]
    load: Callable[[], Callable[..., Tensor]]
    fits: Callable[..., bool]
    probe: Callable[[torch.device], tuple]
    reference: Callable[..., Tensor]


# -- DeepGEMM's FP8 product -----------------------------------------------------------------------


def _load_deep_gemm() -> Callable[..., Tensor]:
    from vllm.utils import deep_gemm

    if not deep_gemm.is_deep_gemm_supported():
        raise ImportError("DeepGEMM is not installed, or switched off (VLLM_USE_DEEP_GEMM)")
    return _deep_gemm_linear


def _fits_deep_gemm(x, scales, weight, weight_scale, dtype, groups=1) -> bool:
    out, columns = weight.shape
    return (
        scales is not None
        and dtype == torch.bfloat16
        and x.shape[0] >= MIN_TOKENS
        and columns % 128 == 0
        and out % (groups * FP8_BLOCK) == 0
    )


def packed_scales(scales: Tensor) -> Tensor:
    """Scale bytes ``[T, n]`` four to an int32 ``[T, n / 4]``, tokens next to each other in memory.

    Columns start at multiples of 16 bytes, as the copy engine wants it.
    """
    words = scales.contiguous().view(torch.int32)
    tokens, columns = words.shape
    out = words.new_empty(columns, -(-tokens // 4) * 4)[:, :tokens].t()
    return out.copy_(words)


def _deep_gemm_linear(x, scales, weight, weight_scale, dtype, groups=1) -> Tensor:
    from vllm.model_executor.layers.quantization.utils.fp8_utils import (
        deepgemm_post_process_fp8_weight_block,
    )
    from vllm.utils.deep_gemm import fp8_einsum

    tokens, (rows, columns) = x.shape[0], weight.shape
    # DeepGEMM wants a scale per row of the weight, and lays scales out in its own way.
    per_row = weight_scale.view(torch.uint8).repeat_interleave(FP8_BLOCK, 0)
    grouped, grouped_scales = deepgemm_post_process_fp8_weight_block(
        weight, per_row, (1, 32), use_e8m0=False, is_bmm=True, bmm_batch_size=groups
    )
    packed = packed_scales(scales).view(tokens, groups, columns // 128)
    out = x.new_empty(tokens, groups, rows // groups, dtype=dtype)
    activation = (x.view(tokens, groups, columns), packed)
    fp8_einsum("bhr,hdr->bhd", activation, (grouped, grouped_scales), out, recipe=(1, 1, 32))
    return out.view(tokens, rows)


def _normal(size: tuple[int, int], generator: torch.Generator) -> Tensor:
    return torch.randn(size, generator=generator, dtype=torch.float32, device="cpu")


def _probe_deep_gemm(device: torch.device) -> tuple:
    generator = torch.Generator().manual_seed(0)
    sizes = ((MIN_TOKENS + 3, 2 * 256), (2 * 128, 256))
    x, weight = (_normal(size, generator) for size in sizes)
    parts = (*reference_linear.quantise_fp8(x), *quantise_fp8_blocks(weight))
    return *(part.to(device) for part in parts), torch.bfloat16, 2


# -- cuBLAS ---------------------------------------------------------------------------------------


def _load_cublas() -> Callable[..., Tensor]:
    return lambda x, weight: torch.mm(x, weight.t(), out_dtype=torch.float32)


def _fits_cublas(x, weight) -> bool:
    return x.dtype == torch.bfloat16 and x.shape[0] > 0


def _probe_cublas(device: torch.device) -> tuple:
    generator = torch.Generator().manual_seed(0)
    sizes = ((5, 256), (64, 256))
    x, weight = (_normal(size, generator).to(torch.bfloat16) for size in sizes)
    return x.to(device), weight.to(device)


VENDORS = (
    Vendor(
        "fp8_linear", "DeepGEMM's fp8_einsum", (100,), _load_deep_gemm, _fits_deep_gemm,
        _probe_deep_gemm, reference_linear.fp8_linear,
    ),
    Vendor(
        "plain_linear", "cuBLAS", (90, 100), _load_cublas, _fits_cublas, _probe_cublas,
        reference_linear.plain_linear,
    ),
)  # fmt: skip
"""None promises results that do not depend on the batch, so batch-invariant mode uses none."""


def choose(
    vendor: Vendor, ours: Callable[..., Tensor], device: torch.device
) -> Callable[..., Tensor]:
    """The implementation of ``vendor.operation`` on ``device``: the vendor's where it is there and
    right, or ``ours``."""
    try:
        theirs = vendor.load()
    except ImportError as missing:
        info_once(logger, f"{vendor.operation}: this package's kernel; {missing}")
        return ours
    problem = _disagreement(vendor, theirs, device)
    if problem:
        warn_once(
            logger,
            f"{vendor.operation}: {vendor.name} is installed but {problem}. This package's kernel "
            "is used instead.",
        )
        return ours
    info_once(logger, f"{vendor.operation}: {vendor.name} where its arguments allow")

    def implementation(*arguments, **keywords) -> Tensor:
        chosen = theirs if vendor.fits(*arguments, **keywords) else ours
        return chosen(*arguments, **keywords)

    return implementation


def _disagreement(vendor: Vendor, theirs: Callable[..., Tensor], device: torch.device) -> str:
    """What is wrong with a vendor's result of the probe, as a clause; empty if nothing is."""
    arguments = vendor.probe(device)
    wanted = vendor.reference(*arguments).double()
    try:
        found = theirs(*arguments).double()
    except Exception as failure:  # code of others, of a version not known here: anything may come
        return f"fails on a small case ({type(failure).__name__}: {failure})"
    if found.shape != wanted.shape:
        return f"returns {list(found.shape)} instead of {list(wanted.shape)}"
    error = float((found - wanted).norm() / wanted.norm())
    if error <= TOLERANCE:
        return ""
    return f"differs from the reference by {error:.1e} (allowed: {TOLERANCE:.0e})"
