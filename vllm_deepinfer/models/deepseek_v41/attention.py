"""Window and compressed attention with one shared key-value head (section 2.6)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vllm_deepinfer.models.deepseek_v41.cache import Cache, LayerCaches
from vllm_deepinfer.models.deepseek_v41.compressor import Compressor
from vllm_deepinfer.models.deepseek_v41.config import LayerPlan, V41Config
from vllm_deepinfer.models.deepseek_v41.indexer import Indexer, Selection
from vllm_deepinfer.models.deepseek_v41.step import Step
from vllm_deepinfer.models.deepseek_v41.stored_weights import (
    Fp8Linear,
    GroupedOutput,
    RmsNorm,
    parameter,
)
from vllm_deepinfer.ops.numerics import Activation, Numerics
from vllm_deepinfer.ops.reference import Keys, rotate_pairs, sink_attention
from vllm_deepinfer.ops.rope import Rope

TOKENS_AT_ONCE = 128
"""Queries whose gathered keys are in memory together."""


class Attention(nn.Module):
    """One layer's attention.

    Args:
        caches: what the layer owns.
        source: what the layer's ``kv_source`` owns, where it finds compressed rows; ``None`` for
            layers with window attention only.
    """

    def __init__(
        self,
        config: V41Config,
        plan: LayerPlan,
        caches: LayerCaches,
        source: LayerCaches | None,
        rope: Rope,
        numerics: Numerics,
    ) -> None:
        super().__init__()
        self.config, self.plan, self.rope, self.numerics = config, plan, rope, numerics
        hidden, heads, head_dim = config.hidden_size, config.num_attention_heads, config.head_dim
        self.window = caches.window
        self.wq_a = Fp8Linear(hidden, config.q_lora_rank, numerics)
        self.q_norm = RmsNorm(config.q_lora_rank, config.rms_norm_eps, numerics)
        self.wq_b = Fp8Linear(config.q_lora_rank, heads * head_dim, numerics)
        self.wkv = Fp8Linear(hidden, head_dim, numerics)
        self.kv_norm = RmsNorm(head_dim, config.rms_norm_eps, numerics)
        self.attn_sink = parameter(heads, dtype=torch.float32)
        self.wo_a = GroupedOutput(
            heads * head_dim // config.o_groups, config.o_lora_rank, config.o_groups, numerics
        )
        self.wo_b = Fp8Linear(config.o_groups * config.o_lora_rank, hidden, numerics)
        if plan.owns_kv:
            self.compressor = Compressor(config, plan, caches, rope, numerics)
        if source is not None:
            assert source.compressed is not None and source.index_key is not None
            self.compressed = source.compressed
            if plan.owns_index:
                self.indexer = Indexer(config, plan, source.index_key, rope, numerics)

    def forward(self, x: Tensor, step: Step, shared: Selection) -> Tensor:
        """``[T, D]`` to ``[T, D]``."""
        activation = self.numerics.activation(x)
        query_latent = self.numerics.activation(self.q_norm(self.wq_a(activation)))
        cos, sin = step.rotation(self.rope)
        writes = step.write_rows(self.window)
        self.window.store(writes.rows, self.window_values(activation, cos, sin)[writes.tokens])
        if self.plan.owns_kv:
            latents = self.compressor(x, step)
            self.indexer.store_keys(latents, step)
        if self.plan.owns_index:
            rows = self.indexer(query_latent, x, step, shared)
            shared.rows = step.locate(self.compressed, rows)
        heads = self._attend(self._query(query_latent, step), step, shared)
        return self.wo_b(self.numerics.activation(self.wo_a(heads)))

    def window_values(self, activation: Activation, cos: Tensor, sin: Tensor) -> Tensor:
        """Keys (and values) ``[T, head_dim]`` the window cache holds for ``[T, D]`` inputs."""
        kv = self.kv_norm(self.wkv(activation))
        return self.numerics.store(rotate_pairs(kv, cos, sin, self.config.qk_rope_head_dim))

    def _query(self, query_latent: Activation, step: Step) -> Tensor:
        query = self.wq_b(query_latent).unflatten(-1, (-1, self.config.head_dim))
        return self._rotate(query, step)

    def _rotate(self, x: Tensor, step: Step) -> Tensor:
        cos, sin = step.rotation(self.rope)
        return self.numerics.store(rotate_pairs(x, cos, sin, self.config.qk_rope_head_dim))

    def _attend(self, query: Tensor, step: Step, shared: Selection) -> Tensor:
        """Attention output ``[T, H, head_dim]``, rotated back at the query position."""
        window = step.window_rows(self.window, self.config.sliding_window)
        chosen = shared.rows if self.plan.ratio else None
        repeated = step.shares_windows
        parts = []
        for start in range(0, query.shape[0], TOKENS_AT_ONCE):
            part = slice(start, start + TOKENS_AT_ONCE)
            keys = [load_keys(self.window, window[part], repeated)]
            if chosen is not None and chosen.shape[1]:
                keys.append(load_keys(self.compressed, chosen[part], repeated))
            scale = self.config.softmax_scale
            parts.append(sink_attention(query[part], keys, self.attn_sink, scale))
        out = self.numerics.store(parts[0] if len(parts) == 1 else torch.cat(parts))
        cos, sin = step.rotation(self.rope)
        return self.numerics.store(rotate_pairs(out, cos, -sin, self.config.qk_rope_head_dim))


def load_keys(cache: Cache, rows: Tensor, repeated: bool) -> Keys:
    """Keys at cache rows ``[T, K]``, negative where there is none."""
    return Keys(cache.load(rows, repeated), rows >= 0)
