"""The DSpark draft block: target features as context, one non-causal block, sequential heads.

source: V4.1 specification, section 4.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from . import attention, blocks

if TYPE_CHECKING:
    from .model import Oracle, Trace


class Draft(NamedTuple):
    """Result of one draft round of B = dspark_block_size rows."""

    logits: np.ndarray  # [B, V]; row k predicts position context_length + k + 1
    drafts: np.ndarray  # int64 [B], greedy
    confidences: np.ndarray  # [B], raw logits (no sigmoid)


def context_features(oracle: Oracle, trace: Trace, context_length: int) -> np.ndarray:
    """main_x [context_length, D] from the taps of the target layers.  source: 4.1."""
    numerics, weights = oracle.numerics, oracle.weights
    taps = [trace.taps[layer] for layer in oracle.config.dspark_target_layer_ids]
    features = np.concatenate(taps, axis=-1)[:context_length]
    projected = numerics.linear_quantised(features, weights["mtp.0.main_proj.weight"])
    eps = oracle.config.rms_norm_eps
    return numerics.rms_norm(projected, weights["mtp.0.main_norm.weight"], eps)


def run_block(oracle: Oracle, context: np.ndarray, bonus_token: int) -> np.ndarray:
    """Draft stages over [bonus, noise, ...] -> pre-norm features g [B, D].  source: 4.2."""
    config, numerics, weights = oracle.config, oracle.numerics, oracle.weights
    ids = np.full(config.dspark_block_size, config.dspark_noise_token_id)
    ids[0] = bonus_token
    stream, pre = oracle.embed(ids)
    for stage in range(config.num_nextn_predict_layers):
        prefix = f"mtp.{stage}"

        def attend(x, prefix=prefix):
            return attention.draft_attention(
                numerics, weights, config, f"{prefix}.attn", x, context, len(context)
            )

        def experts(x, prefix=prefix):
            count = config.dspark_num_experts_per_tok
            return blocks.mixture_of_experts(numerics, weights, config, f"{prefix}.ffn", x, count)[
                0
            ]

        stream, pre = oracle.residual_block(prefix, stream, pre, attend, experts)
    return blocks.pre_mix(numerics, pre, stream)


def draft(
    oracle: Oracle, trace: Trace, context_length: int, bonus_token: int, forced_drafts=None
) -> Draft:
    """One round: ``trace`` must hold at least ``context_length`` tokens.  source: 4.3."""
    if not 1 <= context_length <= len(trace.token_ids):
        raise ValueError(
            f"context_length={context_length}; the trace allows 1 to {len(trace.token_ids)}"
        )
    config, numerics, weights = oracle.config, oracle.numerics, oracle.weights
    last = f"mtp.{config.num_nextn_predict_layers - 1}"
    features = run_block(oracle, context_features(oracle, trace, context_length), bonus_token)
    normed = numerics.rms_norm(features, weights[f"{last}.norm.weight"], config.rms_norm_eps)
    logits = normed @ weights["head.weight"].T
    drafts = np.empty(config.dspark_block_size, dtype=np.int64)
    confidences = np.empty(config.dspark_block_size)
    previous = bonus_token
    for row in range(config.dspark_block_size):
        embedding = weights[f"{last}.markov_head.embed.weight"][previous]
        logits[row] += weights[f"{last}.markov_head.head.weight"] @ embedding
        joined = np.concatenate([features[row], embedding])
        confidences[row] = (weights[f"{last}.confidence_head.proj.weight"] @ joined)[0]
        drafts[row] = int(np.argmax(logits[row]))
        previous = drafts[row] if forced_drafts is None else int(forced_drafts[row])
    return Draft(logits, drafts, confidences)
