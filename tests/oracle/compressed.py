"""Compressor and indexer: rows of compressed KV, their index keys, and which rows a token reads.

source: V4.1 specification, sections 2.7 and 2.8.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from .config import Config
from .numerics import Numerics, rope_angles
from .weights import Weights


@dataclass
class SharedState:
    """What source layers hand to the layers above them; keys are source layer ids.

    A source layer overwrites its own entries when it runs, a consumer only reads, so running layers
    in order fills it, and the state of a complete run serves any later single-layer run.
    """

    compressed_kv: dict[int, np.ndarray] = field(default_factory=dict)  # [rows, 512], after FP4
    index_keys: dict[int, np.ndarray] = field(default_factory=dict)  # [rows, 128], after FP4
    candidates: dict[int, list[np.ndarray]] = field(default_factory=dict)  # per token, block ids
    index_rows: dict[int, list[np.ndarray]] = field(default_factory=dict)  # per token, sorted rows
    index_margins: dict[int, np.ndarray] = field(default_factory=dict)  # [T]
    candidate_margins: dict[int, np.ndarray] = field(default_factory=dict)  # [T]

    def need(self, name: str, source: int):
        """The entry of a source layer, or ValueError telling which layer has to run first."""
        entries = getattr(self, name)
        if source not in entries:
            raise ValueError(
                f"shared state has no {name} of layer {source} (has {sorted(entries)}); run that "
                "layer first with the same shared state, or pass the state of a whole forward"
            )
        return entries[source]


def visible_rows(position: int, ratio: int) -> int:
    """Compressed rows whose group is closed once token ``position`` is seen."""
    return (position + 1) // ratio


def compress(
    numerics: Numerics, weights: Weights, config: Config, layer: int, ratio: int, x: np.ndarray
) -> np.ndarray:
    """Hidden [T, D] -> latent rows [T // ratio, 512], before RoPE.  source: 2.7."""
    prefix = f"layers.{layer}.attn.compressor"
    kv = x @ weights[f"{prefix}.wkv.weight"].T
    if ratio == 1:
        pooled = kv
    else:
        rows = len(x) // ratio  # a trailing open group has no row
        score = x @ weights[f"{prefix}.wgate.weight"].T
        kv = kv[: rows * ratio].reshape(rows, ratio, kv.shape[1])
        score = score[: rows * ratio].reshape(rows, ratio, score.shape[1])
        share = np.exp(score - score.max(axis=1, keepdims=True))
        pooled = (share / share.sum(axis=1, keepdims=True) * kv).sum(axis=1)
    norm = weights[f"{prefix}.norm.weight"]
    return numerics.rms_norm(numerics.store(pooled), norm, config.rms_norm_eps)


def write_source_rows(
    numerics: Numerics,
    weights: Weights,
    config: Config,
    layer: int,
    ratio: int,
    x: np.ndarray,
    shared: SharedState,
) -> None:
    """A kv source's compressed rows and index keys, into ``shared``."""
    latent = compress(numerics, weights, config, layer, ratio, x)
    angles = rope_angles(config, ratio, np.arange(len(latent)) * ratio)  # the group's first token
    shared.compressed_kv[layer] = numerics.compressed_kv(numerics.rope(latent, angles))
    prefix = f"layers.{layer}.attn.indexer"
    key = numerics.linear_bf16(latent, weights[f"{prefix}.wk.weight"])
    key = numerics.rms_norm(key, weights[f"{prefix}.k_norm.weight"], config.rms_norm_eps)
    shared.index_keys[layer] = numerics.index_fp4(numerics.rope(key, angles))


def index_queries(
    numerics: Numerics,
    weights: Weights,
    config: Config,
    layer: int,
    x: np.ndarray,
    latent_query: np.ndarray,
    angles: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Index queries [T, heads, 128] and head weights [T, heads].  source: 2.8."""
    prefix = f"layers.{layer}.attn.indexer"
    heads, dim = config.index_n_heads, config.index_head_dim
    query = numerics.linear_quantised(latent_query, weights[f"{prefix}.wq_b.weight"])
    query = numerics.rope(query.reshape(len(x), heads, dim), angles)
    head_weights = numerics.linear_bf16(x, weights[f"{prefix}.weights_proj.weight"])
    head_weights = numerics.store(head_weights * (dim**-0.5 * heads**-0.5))
    return numerics.index_fp4(query), head_weights


def index_scores(
    numerics: Numerics, query: np.ndarray, head_weights: np.ndarray, keys: np.ndarray
) -> np.ndarray:
    """Scores [rows] of one token; query [heads, 128], head_weights [heads], keys [rows, 128]."""
    similarity = np.maximum(numerics.store(query @ keys.T), 0.0)  # [heads, rows]
    return numerics.store(numerics.store(similarity * head_weights[:, None]).sum(axis=0))


def take_best(scores: np.ndarray, count: int) -> tuple[np.ndarray, float]:
    """Ids of the ``count`` best scores above -inf, ascending, and the gap at the boundary.

    Ties go to the lower id. The gap is inf when everything above -inf was taken.
    """
    order = np.argsort(-scores, kind="stable")
    order = order[: np.count_nonzero(scores > -np.inf)]
    if len(order) <= count:
        return np.sort(order), np.inf
    return np.sort(order[:count]), float(scores[order[count - 1]] - scores[order[count]])


def candidate_blocks(scores: np.ndarray, config: Config) -> tuple[np.ndarray, float]:
    """Block ids one token publishes from its visible ``scores`` [rows]; the newest always is in."""
    if len(scores) == 0:
        return np.empty(0, dtype=np.int64), np.inf
    size = config.candidate_block_size
    blocks = -(-len(scores) // size)
    block_scores = np.array([scores[b * size : (b + 1) * size].max() for b in range(blocks)])
    block_scores[(len(scores) - 1) // size] = np.inf
    return take_best(block_scores, config.candidate_topk_blocks)


def mask_to_blocks(scores: np.ndarray, blocks: np.ndarray, block_size: int) -> np.ndarray:
    """``scores`` with -inf outside the given blocks."""
    inside = np.isin(np.arange(len(scores)) // block_size, blocks)
    return np.where(inside, scores, -np.inf)


def select_rows(
    numerics: Numerics,
    weights: Weights,
    config: Config,
    layer: int,
    ratio: int,
    x: np.ndarray,
    latent_query: np.ndarray,
    angles: np.ndarray,
    shared: SharedState,
) -> None:
    """An index source's selection for every token, into ``shared``.  source: 2.8."""
    keys = shared.need("index_keys", config.kv_source(layer))
    query, head_weights = index_queries(numerics, weights, config, layer, x, latent_query, angles)
    publishes = layer == config.candidate_source_layer_id
    restricted = config.uses_candidates(layer)
    if restricted:
        candidates = shared.need("candidates", config.candidate_source_layer_id)
    rows, margins, blocks, block_margins = [], [], [], []
    for position in range(len(x)):
        visible = visible_rows(position, ratio)
        scores = index_scores(numerics, query[position], head_weights[position], keys[:visible])
        if publishes:
            chosen, gap = candidate_blocks(scores, config)
            blocks.append(chosen)
            block_margins.append(gap)
        if restricted:
            scores = mask_to_blocks(scores, candidates[position], config.candidate_block_size)
        chosen, gap = take_best(scores, config.index_topk)
        rows.append(chosen)
        margins.append(gap)
    shared.index_rows[layer] = rows
    shared.index_margins[layer] = np.array(margins)
    if publishes:
        shared.candidates[layer] = blocks
        shared.candidate_margins[layer] = np.array(block_margins)
