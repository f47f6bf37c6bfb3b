"""What vLLM's own CPU kernels and torch's scaled product take at the cases of `kernels.py`.

vLLM's model code does not reach these kernels here: without AMX its layers refuse them, and its CPU
build has no DeepSeek-V4.1. They are called directly, with what they take: bfloat16 activations
(no quantisation before the product), FP8 scales per 32x128 block, both caches in vLLM's 584 bytes a
row. So they show the time of a comparable kernel, not the same numbers. `torch._scaled_mm` takes
one scale a row, which this checkpoint does not have.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import vllm._C  # noqa: F401  registers the kernels
from torch import Tensor

from vllm_deepinfer.ops import formats
from vllm_deepinfer.ops.records import PlainTailRecord, page_of

BF16 = torch.bfloat16
VLLM, SCALED_MM = "vllm", "scaled_mm"
MXFP4 = 4  # vllm._custom_ops.CPUQuantMethod
SUPPORTED_NUM_EXPERTS = (64, 128, 256, 384)  # some of those of vLLM's router
PAGE_ROWS = 64
_KERNELS = torch.ops._C


class Fp8Layers:
    """Copies of one layer in the form of either product."""

    def __init__(self, weights: list[tuple[Tensor, Tensor]]) -> None:
        self._stored = [code for code, _ in weights]
        self._packed = [
            (
                _KERNELS.convert_weight_packed(code.clone()),
                formats.decode_ue8m0(scale)[:, ::4].contiguous(),
            )
            for code, scale in weights
        ]

    def runs(self, plain: Tensor, codes: Tensor) -> Mapping[str, object]:
        row_scales, column_scales = torch.ones(len(codes), 1), torch.ones(1, len(self._stored[0]))

        def vllm(call: int) -> Tensor:
            weight, scale = self._packed[call % len(self._packed)]
            return _KERNELS.fp8_scaled_mm_cpu(plain, weight, scale, [32, 128], None, BF16, True)

        def scaled_mm(call: int) -> Tensor:
            weight = self._stored[call % len(self._stored)].t()
            return torch._scaled_mm(
                codes, weight, scale_a=row_scales, scale_b=column_scales, out_dtype=BF16
            )

        return {VLLM: vllm, SCALED_MM: scaled_mm}


class Fp4Experts:
    """Expert weights ``[w1, scale, w3, scale, w2, scale]`` as vLLM's kernel takes them."""

    def __init__(self, stacks: list[Tensor]) -> None:
        w1, s1, w3, s3, w2, s2 = (stack.view(torch.uint8) for stack in stacks)
        self._weights = [
            _KERNELS.convert_weight_packed(stack) for stack in (torch.cat([w1, w3], 1), w2.clone())
        ]
        self._scales = [
            _KERNELS.convert_scale_packed(scale) for scale in (torch.cat([s1, s3], 1), s2.clone())
        ]

    def runs(self, plain: Tensor, chosen: Tensor, weights: Tensor) -> Mapping[str, object]:
        out = torch.empty_like(plain)

        def vllm(call: int) -> None:
            experts = ((chosen + call) % 8).to(torch.int32)
            _KERNELS.fused_experts_cpu(
                out, plain, *self._weights, weights, experts, MXFP4, *self._scales,
                *[None] * 8, True,
            )  # fmt: skip

        return {VLLM: vllm}


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Mapping[str, object]:
    out = torch.empty_like(x)
    return {VLLM: lambda call: _KERNELS.rms_norm(out, x, weight, eps)}


def stream_mixes(x: Tensor, weights: tuple) -> Mapping[str, object]:
    """vLLM's kernel mixes the streams, too."""
    fn, scale, base, eps, hc_eps, rounds = weights
    return {
        VLLM: lambda call: _KERNELS.hc_pre_fused_cpu(x, fn, scale, base, 4, rounds, eps, hc_eps)
    }


def expand_streams(out: Tensor, x: Tensor, post: Tensor, comb: Tensor) -> Mapping[str, object]:
    return {VLLM: lambda call: _KERNELS.hc_post_fused_cpu(out, x, post, comb)}


def sink_attention(
    query: Tensor, sink: Tensor, window_rows: Tensor, selected_rows: Tensor
) -> Mapping[str, object]:
    codec, out = PlainTailRecord(query.shape[-1]), torch.empty_like(query)

    def cache(num_rows: int) -> Tensor:
        rows = codec.encode(torch.randn(num_rows // PAGE_ROWS, PAGE_ROWS, codec.width).to(BF16))
        return page_of(rows, codec, PAGE_ROWS * codec.num_bytes)

    window, selected = cache(4096), cache(8192)
    return {
        VLLM: lambda call: _KERNELS.flash_mla_with_kvcache_cpu(
            out, query, window, window_rows, PAGE_ROWS, selected, selected_rows, PAGE_ROWS, sink,
            0.04,
        )
    }  # fmt: skip


def route(logits: Tensor, bias: Tensor, count: int, scale: float) -> Mapping[str, object]:
    if logits.shape[1] not in SUPPORTED_NUM_EXPERTS:
        return {}
    return {
        VLLM: lambda call: _KERNELS.biased_topk_cpu(
            logits, logits, bias, count, True, "sqrtsoftplus", 0, scale, True
        )
    }
