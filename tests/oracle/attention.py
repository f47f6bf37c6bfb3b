"""Window-plus-compressed attention of one layer over a whole prompt, and of the draft block.

source: V4.1 specification, sections 2.6 and 4.
"""

from __future__ import annotations

import numpy as np

from .compressed import SharedState, select_rows, write_source_rows
from .config import Config
from .numerics import Numerics, rope_angles
from .weights import Weights


def project_queries(
    numerics: Numerics,
    weights: Weights,
    config: Config,
    prefix: str,
    x: np.ndarray,
    angles: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Hidden [T, D] -> latent query [T, q_lora_rank] and rotated queries [T, heads, 512]."""
    latent = numerics.linear_quantised(x, weights[f"{prefix}.wq_a.weight"])
    latent = numerics.rms_norm(latent, weights[f"{prefix}.q_norm.weight"], config.rms_norm_eps)
    query = numerics.linear_quantised(latent, weights[f"{prefix}.wq_b.weight"])
    query = query.reshape(len(x), config.num_attention_heads, config.head_dim)
    return latent, numerics.rope(query, angles)


def project_window_kv(
    numerics: Numerics,
    weights: Weights,
    config: Config,
    prefix: str,
    x: np.ndarray,
    angles: np.ndarray,
) -> np.ndarray:
    """Hidden [T, D] -> window KV [T, 512] as read back from the cache."""
    kv = numerics.linear_quantised(x, weights[f"{prefix}.wkv.weight"])
    kv = numerics.rms_norm(kv, weights[f"{prefix}.kv_norm.weight"], config.rms_norm_eps)
    return numerics.window_kv(numerics.rope(kv, angles))


def attend(query: np.ndarray, keys: np.ndarray, sink: np.ndarray) -> np.ndarray:
    """One token: query [heads, 512], keys (= values) [n, 512], sink [heads] -> [heads, 512].

    Softmax in one pass with unrounded probabilities; the sink enters the denominator only and the
    maximum runs over real keys only.
    """
    scores = query @ keys.T * query.shape[-1] ** -0.5
    largest = scores.max(axis=-1)
    probability = np.exp(scores - largest[:, None])
    denominator = probability.sum(axis=-1) + np.exp(sink - largest)
    return probability @ keys / denominator[:, None]


def project_output(
    numerics: Numerics,
    weights: Weights,
    config: Config,
    prefix: str,
    heads_out: np.ndarray,
    angles: np.ndarray,
) -> np.ndarray:
    """Attention result [T, heads, 512] -> [T, D]: inverse RoPE, grouped wo_a, wo_b."""
    heads_out = numerics.rope(numerics.store(heads_out), angles, inverse=True)
    groups = config.o_groups
    grouped = heads_out.reshape(len(heads_out), groups, -1)
    wo_a = weights[f"{prefix}.wo_a.weight"].reshape(groups, -1, grouped.shape[-1])
    low_rank = np.empty((len(heads_out), groups, wo_a.shape[1]))
    for group in range(groups):  # the reference keeps these activations in bf16: no quantiser
        low_rank[:, group] = numerics.linear_bf16(grouped[:, group], wo_a[group])
    flat = low_rank.reshape(len(heads_out), -1)
    return numerics.linear_quantised(flat, weights[f"{prefix}.wo_b.weight"])


def replace_rows(own: list[np.ndarray], forced: list[np.ndarray | None]) -> None:
    """Overwrite a selection token by token; None keeps the own one."""
    if len(forced) < len(own):
        raise ValueError(f"forced index_rows hold {len(forced)} tokens, the prompt {len(own)}")
    for position, rows in enumerate(forced[: len(own)]):
        if rows is not None:
            own[position] = np.asarray(rows, dtype=np.int64)


def layer_attention(
    numerics: Numerics,
    weights: Weights,
    config: Config,
    layer: int,
    x: np.ndarray,
    shared: SharedState,
    forced_rows: dict[int, list[np.ndarray | None]] | None = None,
) -> np.ndarray:
    """Normed hidden [T, D] of the whole prompt -> attention output [T, D].

    Source layers write their rows into ``shared``; ``forced_rows`` replaces the selection of the
    index sources and tokens it names.
    """
    prefix = f"layers.{layer}.attn"
    ratio = config.compress_ratios[layer]
    angles = rope_angles(config, ratio, np.arange(len(x)))
    latent_query, query = project_queries(numerics, weights, config, prefix, x, angles)
    window = project_window_kv(numerics, weights, config, prefix, x, angles)
    compressed, rows = None, None
    if ratio:
        if layer in config.kv_source_layer_ids:
            write_source_rows(numerics, weights, config, layer, ratio, x, shared)
        if layer in config.index_source_layer_ids:
            select_rows(numerics, weights, config, layer, ratio, x, latent_query, angles, shared)
            if forced_rows and layer in forced_rows:
                replace_rows(shared.index_rows[layer], forced_rows[layer])
        compressed = shared.need("compressed_kv", config.kv_source(layer))
        rows = shared.need("index_rows", config.index_source(layer))
    sink = weights[f"{prefix}.attn_sink"]
    result = np.empty_like(query)
    for position in range(len(x)):
        keys = window[max(0, position - config.sliding_window + 1) : position + 1]
        if compressed is not None:
            keys = np.concatenate([keys, compressed[rows[position]]])
        result[position] = attend(query[position], keys, sink)
    return project_output(numerics, weights, config, prefix, result, angles)


def draft_attention(
    numerics: Numerics,
    weights: Weights,
    config: Config,
    prefix: str,
    x: np.ndarray,
    context: np.ndarray,
    context_length: int,
) -> np.ndarray:
    """Draft block [B, D] at positions context_length.. -> [B, D]; every row sees the same keys.

    ``context`` [context_length, D] are the projected target features.  source: 4.1, 4.2.
    """
    first = max(0, context_length - config.sliding_window)
    context_angles = rope_angles(config, 0, np.arange(first, context_length))
    context_kv = project_window_kv(
        numerics, weights, config, prefix, context[first:], context_angles
    )
    angles = rope_angles(config, 0, np.arange(context_length, context_length + len(x)))
    _, query = project_queries(numerics, weights, config, prefix, x, angles)
    block_kv = project_window_kv(numerics, weights, config, prefix, x, angles)
    keys = np.concatenate([context_kv, block_kv])
    sink = weights[f"{prefix}.attn_sink"]
    result = np.stack([attend(row, keys, sink) for row in query])
    return project_output(numerics, weights, config, prefix, result, angles)
