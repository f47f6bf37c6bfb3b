"""Hyper-connections (section 2.2): coefficients and the way back into the streams.

npu_mhc_pre collapses the streams with the pre-mix it computes itself. V4.1 collapses them with that
of half a layer earlier, so only its coefficients are used here; ``mix_streams`` stays torch's.
"""

from __future__ import annotations

import torch
import torch_npu
from torch import Tensor

from vllm_deepinfer.ops import streams as operations

WITH_PRE_MIX = 1
FLOAT32_PRODUCTS = 0


def stream_mixes(
    streams: Tensor,
    projection: Tensor,
    scale: Tensor,
    base: Tensor,
    rms_eps: float,
    hc_eps: float,
    iterations: int,
) -> tuple[Tensor, Tensor, Tensor]:
    operations._check_mixes(streams, projection, scale, base, iterations)
    _, post, logits, _, _, pre = torch_npu.npu_mhc_pre(
        streams,
        projection,
        scale,
        base,
        norm_eps=rms_eps,
        hc_eps=hc_eps,
        out_flag=WITH_PRE_MIX,
        inner_precise=FLOAT32_PRODUCTS,
    )
    comb, _, _ = torch_npu.npu_mhc_sinkhorn(logits, eps=hc_eps, num_iters=iterations)
    return pre, post, comb


def expand_streams(
    out: Tensor, streams: Tensor, post: Tensor, comb: Tensor, dtype: torch.dtype
) -> Tensor:
    operations._check_expand(out, streams, post, comb, dtype)
    return torch_npu.npu_mhc_post(streams, comb, out, post)
