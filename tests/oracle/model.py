"""The text model: skeleton, single layers, and the trace of a forward pass.

source: V4.1 specification, section 2.1.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from . import attention, blocks, dspark, engram
from .compressed import SharedState
from .config import HC_STREAMS, read_config
from .numerics import Numerics
from .weights import Weights


@dataclass
class Trace:
    """Everything a forward pass over T tokens decided and produced (float64 unless said)."""

    token_ids: np.ndarray  # int64 [T]
    shared: SharedState  # compressed rows, index keys, candidates by source layer
    logits: np.ndarray | None = None  # [T, V]
    layer_inputs: list[np.ndarray] = field(default_factory=list)  # [T, 4, D] + the final stream
    pre: list[np.ndarray] = field(default_factory=list)  # [T, 4] carried in, + the final one
    experts: dict[int, np.ndarray] = field(default_factory=dict)  # int [T, k], ascending ids
    expert_margins: dict[int, np.ndarray] = field(default_factory=dict)  # [T], own scores
    engram_rows: dict[int, np.ndarray] = field(default_factory=dict)  # int [T, columns]
    taps: dict[int, np.ndarray] = field(default_factory=dict)  # [T, D]

    @property
    def index_rows(self) -> dict[int, list[np.ndarray]]:
        """{index source: per token the sorted compressed rows read}."""
        return self.shared.index_rows

    @property
    def index_margins(self) -> dict[int, np.ndarray]:
        """{index source: [T] score gap at the top-k boundary; inf when all rows are taken}."""
        return self.shared.index_margins


class Oracle:
    """Float64 forward pass of a checkpoint directory (config.json, safetensors, tokenizer.json).

    ``quantised`` applies the activation and cache quantisers, ``rounding="bf16"`` the mandated bf16
    stores. Text only: a prompt holding the image token is refused.
    """

    def __init__(self, checkpoint_dir: str | Path, quantised: bool, rounding: str | None):
        checkpoint_dir = Path(checkpoint_dir)
        self.config = read_config(checkpoint_dir)
        self.weights = Weights(checkpoint_dir)
        self.numerics = Numerics(quantised, rounding)
        self.engram = engram.Engram(self.config, checkpoint_dir / "tokenizer.json")

    def _check(self, token_ids) -> np.ndarray:
        ids = np.asarray(token_ids, dtype=np.int64)
        if ids.ndim != 1 or len(ids) == 0:
            raise ValueError(f"token_ids must be a non-empty vector, got shape {ids.shape}")
        if ids.min() < 0 or ids.max() >= self.config.vocab_size:
            raise ValueError(f"token ids must lie in [0, {self.config.vocab_size})")
        if np.any(ids == self.config.image_token_id):
            raise ValueError(f"image token {self.config.image_token_id} in a text-only oracle")
        return ids

    def embed(self, token_ids) -> tuple[np.ndarray, np.ndarray]:
        """Ids [T] -> equal streams [T, 4, D] and the one-hot first pre-mix [T, 4]."""
        ids = self._check(token_ids)
        rows = self.weights["embed.weight"][ids]
        pre = np.zeros((len(ids), HC_STREAMS))
        pre[:, 0] = 1.0
        return np.repeat(rows[:, None, :], HC_STREAMS, axis=1), pre

    def forward(self, token_ids, force=None) -> Trace:
        """Run the whole prompt; ``force`` (with .experts and .index_rows) supplies the decisions.

        A layer absent from either dict, and a None among a layer's rows, leave that decision to the
        own scores. Margins in the trace are always those of the own scores.
        """
        ids = self._check(token_ids)
        trace = Trace(ids, SharedState())
        stream, pre = self.embed(ids)
        for layer in range(self.config.num_hidden_layers):
            trace.layer_inputs.append(stream)
            trace.pre.append(pre)
            stream, pre = self._layer(layer, stream, pre, ids, force, trace)
        trace.layer_inputs.append(stream)
        trace.pre.append(pre)
        trace.logits = self.logits(stream, pre)
        return trace

    def layer(self, layer: int, stream, pre, token_ids, force=None, shared=None):
        """One layer from given inputs -> (stream [T, 4, D], pre [T, 4]).

        ``shared`` carries what source layers produced: pass one SharedState through consecutive
        layers, or a finished trace's ``shared``. Consumers only read it; a source layer replaces
        its own entries. Without it a layer that reads an earlier source raises ValueError.
        """
        ids = self._check(token_ids)
        trace = Trace(ids, SharedState() if shared is None else shared)
        return self._layer(layer, np.asarray(stream), np.asarray(pre), ids, force, trace)

    def logits(self, stream: np.ndarray, pre: np.ndarray) -> np.ndarray:
        """Final stream [T, 4, D] and last pre-mix [T, 4] -> logits [T, V]."""
        mixed = blocks.pre_mix(self.numerics, pre, stream)
        eps = self.config.rms_norm_eps
        out = self.numerics.rms_norm(mixed, self.weights["norm.weight"], eps)
        return out @ self.weights["head.weight"].T

    def draft(
        self, context_trace: Trace, context_length: int, bonus_token: int, forced_drafts=None
    ):
        """Draft block after the first ``context_length`` tokens of a trace -> dspark.Draft.

        ``forced_drafts`` [block] replaces the greedy tokens fed to the sequential heads.
        """
        return dspark.draft(self, context_trace, context_length, bonus_token, forced_drafts)

    def _layer(self, layer, stream, pre, ids, force, trace: Trace):
        config, numerics, weights = self.config, self.numerics, self.weights
        if layer in config.engram_layer_ids:
            trace.engram_rows[layer] = self.engram.rows(layer, ids)
            stream = engram.apply_engram(
                numerics, weights, config, layer, stream, trace.engram_rows[layer]
            )
        if layer in config.dspark_target_layer_ids:
            trace.taps[layer] = numerics.store(stream.mean(axis=1))

        def attend(x):
            rows = None if force is None else force.index_rows
            return attention.layer_attention(
                numerics, weights, config, layer, x, trace.shared, rows
            )

        def experts(x):
            out, trace.experts[layer], trace.expert_margins[layer] = blocks.mixture_of_experts(
                numerics,
                weights,
                config,
                f"layers.{layer}.ffn",
                x,
                config.num_experts_per_tok,
                None if force is None else force.experts.get(layer),
            )
            return out

        return self.residual_block(f"layers.{layer}", stream, pre, attend, experts)

    def residual_block(self, prefix: str, stream, pre, attend, experts):
        """The two half-layers with their half-layer-delayed pre-mix -> (stream, next pre)."""
        config, numerics, weights = self.config, self.numerics, self.weights
        eps = config.rms_norm_eps
        attn_pre, attn_post, attn_comb = blocks.mixes(weights, config, f"{prefix}.hc_attn", stream)
        x = blocks.pre_mix(numerics, pre, stream)  # the carried-in pre, not attn_pre
        x = numerics.rms_norm(x, weights[f"{prefix}.attn_norm.weight"], eps)
        stream = blocks.post_mix(numerics, attend(x), stream, attn_post, attn_comb)
        ffn_pre, ffn_post, ffn_comb = blocks.mixes(weights, config, f"{prefix}.hc_ffn", stream)
        x = blocks.pre_mix(numerics, attn_pre, stream)
        x = numerics.rms_norm(x, weights[f"{prefix}.ffn_norm.weight"], eps)
        stream = blocks.post_mix(numerics, experts(x), stream, ffn_post, ffn_comb)
        return stream, ffn_pre
