"""Hyper-connection mixes and the mixture of experts, shared by decoder layers and draft blocks.

source: V4.1 specification, sections 2.2 and 2.10.
"""

from __future__ import annotations

import numpy as np

from .config import HC_STREAMS, Config
from .engram import sigmoid
from .numerics import Numerics
from .weights import Weights


def mixes(
    weights: Weights, config: Config, prefix: str, stream: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Stream [T, 4, D] -> pre [T, 4], post [T, 4], comb [T, 4 from, 4 to].  source: 2.2.

    ``prefix`` is e.g. "layers.0.hc_attn".
    """
    tokens, n = len(stream), HC_STREAMS
    scale, base = weights[f"{prefix}_scale"], weights[f"{prefix}_base"]
    x = stream.reshape(tokens, -1)
    norm = np.sqrt((x * x).mean(axis=-1, keepdims=True) + config.rms_norm_eps)
    m = x @ weights[f"{prefix}_fn"].T / norm  # [T, 24]
    pre = sigmoid(m[:, :n] * scale[0] + base[:n]) + config.hc_eps
    post = 2.0 * sigmoid(m[:, n : 2 * n] * scale[1] + base[n : 2 * n])
    logits = (m[:, 2 * n :] * scale[2] + base[2 * n :]).reshape(tokens, n, n)
    comb = np.exp(logits - logits.max(axis=2, keepdims=True))
    comb = comb / comb.sum(axis=2, keepdims=True) + config.hc_eps
    comb = comb / (comb.sum(axis=1, keepdims=True) + config.hc_eps)
    for _ in range(config.hc_sinkhorn_iters - 1):
        comb = comb / (comb.sum(axis=2, keepdims=True) + config.hc_eps)
        comb = comb / (comb.sum(axis=1, keepdims=True) + config.hc_eps)
    return pre, post, comb


def pre_mix(numerics: Numerics, pre: np.ndarray, stream: np.ndarray) -> np.ndarray:
    """bf16(sum_s pre_s h_s): [T, 4], [T, 4, D] -> [T, D]."""
    return numerics.store((pre[:, :, None] * stream).sum(axis=1))


def post_mix(
    numerics: Numerics, out: np.ndarray, stream: np.ndarray, post: np.ndarray, comb: np.ndarray
) -> np.ndarray:
    """h'_j = post_j out + sum_i comb[i, j] h_i -> [T, 4, D]."""
    mixed = np.einsum("tij,tid->tjd", comb, stream)
    return numerics.store(post[:, :, None] * out[:, None, :] + mixed)


def feed_forward(
    numerics: Numerics,
    weights: Weights,
    config: Config,
    prefix: str,
    x: np.ndarray,
    route_weight: np.ndarray | None = None,
) -> np.ndarray:
    """Clamped SwiGLU expert [T, D] -> [T, D]; the route weight [T] enters before W2's quantiser."""
    limit = config.swiglu_limit
    gate = np.minimum(numerics.linear_quantised(x, weights[f"{prefix}.w1.weight"]), limit)
    up = numerics.linear_quantised(x, weights[f"{prefix}.w3.weight"])
    hidden = gate * sigmoid(gate) * np.clip(up, -limit, limit)
    if route_weight is not None:
        hidden = hidden * route_weight[:, None]
    return numerics.linear_quantised(numerics.store(hidden), weights[f"{prefix}.w2.weight"])


def route(
    weights: Weights, config: Config, prefix: str, x: np.ndarray, count: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Affinities [T, experts], chosen ids [T, count] ascending, boundary gap [T].  source: 2.10."""
    affinity = np.sqrt(np.logaddexp(0.0, x @ weights[f"{prefix}.gate.weight"].T))
    biased = affinity + weights[f"{prefix}.gate.bias"]
    order = np.argsort(-biased, axis=-1, kind="stable")  # ties: lowest id
    ranked = np.take_along_axis(biased, order, axis=-1)
    if ranked.shape[1] > count:
        margin = ranked[:, count - 1] - ranked[:, count]
    else:
        margin = np.full(len(x), np.inf)
    return affinity, np.sort(order[:, :count], axis=-1), margin


def mixture_of_experts(
    numerics: Numerics,
    weights: Weights,
    config: Config,
    prefix: str,
    x: np.ndarray,
    count: int,
    forced: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Hidden [T, D] -> output [T, D], experts used [T, count], own boundary gap [T]."""
    affinity, chosen, margin = route(weights, config, prefix, x, count)
    if forced is not None:
        chosen = np.asarray(forced)[: len(x)]
        if chosen.shape != (len(x), count):
            raise ValueError(f"forced experts {chosen.shape}, needed {(len(x), count)}")
    route_weights = np.take_along_axis(affinity, chosen, axis=-1)
    if count > 1:
        route_weights = route_weights / (route_weights.sum(axis=-1, keepdims=True) + 1e-20)
    route_weights = route_weights * config.routed_scaling_factor
    total = feed_forward(numerics, weights, config, f"{prefix}.shared_experts", x)
    for expert in range(affinity.shape[1]):
        token, slot = np.nonzero(chosen == expert)
        if len(token):
            total[token] += feed_forward(
                numerics,
                weights,
                config,
                f"{prefix}.experts.{expert}",
                x[token],
                route_weights[token, slot],
            )
    return numerics.store(total), chosen, margin
