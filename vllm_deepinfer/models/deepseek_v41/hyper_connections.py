"""Manifold-constrained hyper-connections: four residual streams and their mixing (section 2.2)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vllm_deepinfer.models.deepseek_v41.config import V41Config
from vllm_deepinfer.models.deepseek_v41.stored_weights import parameter
from vllm_deepinfer.ops.streams import stream_mixes

HALVES = ("attn", "ffn")


def add_mix_parameters(layer: nn.Module, config: V41Config) -> None:
    """Give a decoder layer the ``hc_attn_*`` and ``hc_ffn_*`` parameters of the checkpoint."""
    for half in HALVES:
        mix, width = config.hc_mix_size, config.hc_mult * config.hidden_size
        layer.register_parameter(f"hc_{half}_fn", parameter(mix, width, dtype=torch.float32))
        layer.register_parameter(f"hc_{half}_base", parameter(mix, dtype=torch.float32))
        layer.register_parameter(f"hc_{half}_scale", parameter(3, dtype=torch.float32))


def layer_mixes(
    layer: nn.Module, half: str, streams: Tensor, config: V41Config
) -> tuple[Tensor, Tensor, Tensor]:
    """``(pre, post, comb)`` of one half of a layer for streams ``[T, S, D]``."""
    return stream_mixes(
        streams,
        getattr(layer, f"hc_{half}_fn"),
        getattr(layer, f"hc_{half}_scale"),
        getattr(layer, f"hc_{half}_base"),
        config.rms_norm_eps,
        config.hc_eps,
        config.hc_sinkhorn_iters,
    )


def first_pre_mix(num_tokens: int, streams: int, device: torch.device) -> Tensor:
    """The pre-mix carried into the first layer: stream 0 alone."""
    pre = torch.zeros(num_tokens, streams, dtype=torch.float32, device=device)
    pre[:, 0] = 1.0
    return pre
