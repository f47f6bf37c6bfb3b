"""What computes each operation on Ascend, as data: calls of torch_npu, or torch and why.

An entry of ``NATIVE`` is used where its arguments are such as the operator takes; others, and empty
tensors, which no operator takes, go to the torch form or the reference. Evidence for every call is
in docs/npu-conformance.md. None has run on an NPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

import torch
from torch import Tensor

from vllm_deepinfer.ops import (
    attention,
    caches,
    engram,
    experts,
    indexer,
    linear,
    norm,
    quantise,
    rotation,
    router,
    streams,
)
from vllm_deepinfer.ops.npu.torch_forms import TORCH_FORMS
from vllm_deepinfer.ops.records import RecordKind

BF16 = torch.bfloat16


@dataclass(frozen=True)
class Native:
    """An operation computed by torch_npu.

    Attributes:
        module: of ``ops.npu.calls``; its function is named as the operation.
        calls: the operators it is made of.
        takes: whether the arguments are such as they take.
        taken: the same in words.
    """

    module: str
    calls: tuple[str, ...]
    takes: Callable[..., bool]
    taken: str

    def load(self, operation: str) -> Callable:
        """The function. Imports torch_npu."""
        return getattr(import_module(f"vllm_deepinfer.ops.npu.calls.{self.module}"), operation)


def _bfloat16_in_and_out(x: Tensor, *arguments) -> bool:
    return x.dtype == arguments[-1] == BF16


def _quantised_rows(x, scales, weight, weight_scale, dtype, groups=1) -> bool:
    return scales is not None and groups == 1 and dtype == BF16


def _quantised_experts(x, scales, *arguments) -> bool:
    return scales is not None and arguments[-1] == BF16


def _window_rows(cache, rows, x, cos, sin, kind, dtype) -> bool:
    return kind == RecordKind.FP8 and dtype == BF16


NATIVE = {
    "clamped_swiglu": Native("rows", ("npu_clipped_swiglu",), _bfloat16_in_and_out, "bfloat16"),
    "expand_streams": Native(
        "streams",
        ("npu_mhc_post",),
        lambda out, streams, post, comb, dtype: out.dtype == streams.dtype == dtype == BF16,
        "bfloat16",
    ),
    "fp4_experts": Native(
        "experts",
        ("npu_grouped_matmul", "npu_dynamic_mx_quant"),
        _quantised_experts,
        "quantised rows",
    ),
    "fp8_linear": Native(
        "quantised", ("npu_quant_matmul",), _quantised_rows, "quantised rows, one group"
    ),
    "quantise_fp8": Native(
        "quantised", ("npu_dynamic_mx_quant",), lambda x: x.dtype == BF16, "bfloat16"
    ),
    "rms_norm": Native("rows", ("npu_rms_norm",), _bfloat16_in_and_out, "bfloat16"),
    "rotate": Native("rows", ("npu_rotary_mul",), lambda *_, **__: True, "all"),
    "store_rotated": Native(
        "rows",
        ("npu_rotary_mul", "npu_dynamic_mx_quant"),
        _window_rows,
        "window rows, placed by torch: npu_scatter_pa_cache takes contiguous caches and no "
        "negative rows",
    ),
    "stream_mixes": Native(
        "streams",
        ("npu_mhc_pre", "npu_mhc_sinkhorn"),
        lambda streams, *_: streams.dtype == BF16,
        "bfloat16",
    ),
}

NOT_NATIVE = {
    "add_memory": "no operator gates by the square root of a dot product",
    "candidate_blocks": "npu_quant_lightning_indexer keeps rows, not blocks of rows",
    "engram_rows": "no operator hashes n-grams",
    "index_scores": "npu_quant_lightning_indexer takes e4m3 keys with a float scale a row, not "
    "packed e2m1 with a scale per 32 columns, and returns rows without their scores",
    "load_rows": "npu_gather_pa_kv_cache gathers whole requests, not chosen rows",
    "load_table_rows": "npu_anti_mx_quant dequantises, but gathers nothing",
    "mix_streams": "npu_mhc_pre collapses with the pre-mix of this half layer, not the earlier one",
    "plain_linear": "torch_npu has no bfloat16 product that returns float32",
    "pool_pairs": "no operator pools pairs of tokens",
    "rope_angles": "float64 cosines, a table's worth",
    "route": "npu_moe_gating_top_k, by its documents, scores by softmax or sigmoid, not by the "
    "root of softplus",
    "select_rows": "npu_quant_lightning_indexer selects among keys of its own format only",
    "sink_attention": "npu_kv_quant_sparse_flash_attention reads int8 rows with float scales per "
    "128 columns and a rotary part apart, and the documents of npu_sparse_flash_attention do not "
    "say what its sinks do",
    "sum_experts": "npu_moe_finalize_routing sums in another order and without float32 rounding",
}
"""Why torch_npu 2.13 does not compute an operation."""

NOT_USED = {
    "npu_moe_gating_top_k": "see `route`",
    "npu_kv_quant_sparse_flash_attention": "see `sink_attention`",
    "npu_quant_lightning_indexer": "see `index_scores`",
    "npu_rms_norm_dynamic_mx_quant": "norm and quantiser are two operations of the model; it is "
    "documented neither how it rounds between them nor that a scale has a floor",
    "npu_scatter_pa_cache": "see `store_rotated`",
    "npu_swiglu_group_quant": "applies the router's weight, but the wheel does not document its "
    "rounding, which the model does to bfloat16 before it quantises, nor its scales",
    "npu_swiglu_mx_quant": "has no place for the router's weight, which comes before the quantiser",
    "npu_transpose_quant_batchmatmul": "takes quantised rows; the grouped half of the output "
    "projection, the only one it is for, has bfloat16 rows here",
}
"""Operators that vllm-ascend or others use for this family of models, and why these are not."""

REFERENCES = {
    "add_memory": engram._memory_reference,
    "candidate_blocks": indexer._blocks_reference,
    "clamped_swiglu": router._swiglu_reference,
    "engram_rows": engram._rows_reference,
    "expand_streams": streams._expand_reference,
    "fp4_experts": experts._reference,
    "fp8_linear": linear._fp8_reference,
    "index_scores": indexer._scores_reference,
    "load_rows": caches._load_reference,
    "load_table_rows": engram._table_reference,
    "mix_streams": streams._mix_reference,
    "plain_linear": linear._plain_reference,
    "pool_pairs": caches._pool_reference,
    "quantise_fp8": quantise._reference,
    "rms_norm": norm._reference,
    "rope_angles": rotation._angles_reference,
    "rotate": rotation._rotate_reference,
    "route": router._route_reference,
    "select_rows": indexer._select_reference,
    "sink_attention": attention._reference,
    "store_rotated": caches._store_reference,
    "stream_mixes": streams._mixes_reference,
    "sum_experts": router._sum_reference,
}
"""All operations, and what each was defined with."""


@dataclass(frozen=True)
class Implementation:
    """What computes an operation, and the same in words."""

    compute: Callable
    computed_by: str
    native: bool = False


def implementation(operation: str, native: bool, left_to_torch: bool = False) -> Implementation:
    """What computes ``operation``; with ``native``, torch_npu where it can and may."""
    what = "torch form" if operation in TORCH_FORMS else "torch reference"
    if not native:
        return Implementation(in_torch(operation), what)
    if left_to_torch:
        return Implementation(in_torch(operation), f"{what}, by npu_torch_ops")
    entry = NATIVE.get(operation)
    if entry is None:
        return Implementation(in_torch(operation), f"{what}, because {NOT_NATIVE[operation]}")
    calls = " + ".join(f"torch_npu.{call}" for call in entry.calls)
    return Implementation(_where_taken(operation, entry), f"{calls} ({entry.taken})", True)


def in_torch(operation: str) -> Callable:
    """The form made for an NPU, or the reference where that one does."""
    return TORCH_FORMS.get(operation, REFERENCES[operation])


def _where_taken(operation: str, entry: Native) -> Callable:
    theirs, ours = entry.load(operation), in_torch(operation)

    def compute(*arguments, **keywords):
        empty = any(isinstance(x, Tensor) and not x.numel() for x in arguments)
        chosen = ours if empty or not entry.takes(*arguments, **keywords) else theirs
        return chosen(*arguments, **keywords)

    return compute
