"""Window and compressed attention with one shared key-value head (section 2.6)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vllm_deepinfer.models.deepseek_v41.cache import LayerCaches
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
from vllm_deepinfer.ops.attention import sink_attention
from vllm_deepinfer.ops.numerics import Activation, Numerics
from vllm_deepinfer.ops.rope import Rope
from vllm_deepinfer.ops.rotation import rotate


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
        self.store_window(activation, step.write_rows(self.window).rows, cos, sin)
        if self.plan.owns_kv:
            latents = self.compressor(x, step)
            self.indexer.store_keys(latents, step)
        if self.plan.owns_index:
            rows = self.indexer(query_latent, x, step, shared)
            shared.rows = step.locate(self.compressed, rows)
        query = self.wq_b(query_latent).unflatten(-1, (-1, self.config.head_dim))
        query = rotate(query, cos, sin, self.numerics.dtype)
        heads = rotate(self._attend(query, step, shared), cos, sin, self.numerics.dtype, True)
        return self.wo_b(self.numerics.activation(self.wo_a(heads)))

    def store_window(self, activation: Activation, rows: Tensor, cos: Tensor, sin: Tensor) -> None:
        """Write keys (and values) of ``[T, D]`` inputs to window rows ``[T]``, unless negative."""
        kv = self.kv_norm(self.wkv(activation))
        self.window.store_rotated(rows, kv, cos, sin, self.numerics.dtype)

    def _attend(self, query: Tensor, step: Step, shared: Selection) -> Tensor:
        """Attention output ``[T, H, head_dim]``, still rotated."""
        scale, dtype = self.config.softmax_scale, self.numerics.dtype
        window, kind = self.window.rows
        rows = step.window_rows(self.window, self.config.sliding_window)
        if not self.plan.ratio:
            return sink_attention(query, self.attn_sink, scale, dtype, window, rows, kind)
        selected, selected_kind = self.compressed.rows
        return sink_attention(
            query, self.attn_sink, scale, dtype, window, rows, kind, selected, shared.rows,
            selected_kind,
        )  # fmt: skip
