"""The text decoder: a pure torch module over caches that somebody else allocates (section 2.1)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from vllm_deepinfer.models.deepseek_v41.attention import Attention
from vllm_deepinfer.models.deepseek_v41.cache import Cache, LayerCaches, layer_caches
from vllm_deepinfer.models.deepseek_v41.config import LayerPlan, V41Config
from vllm_deepinfer.models.deepseek_v41.engram import Engram, TableRows
from vllm_deepinfer.models.deepseek_v41.engram_lookup import EngramLookup
from vllm_deepinfer.models.deepseek_v41.expert_exchange import (
    ExpertExchange,
    LocalExperts,
    RankRows,
)
from vllm_deepinfer.models.deepseek_v41.hyper_connections import (
    add_mix_parameters,
    first_pre_mix,
    layer_mixes,
)
from vllm_deepinfer.models.deepseek_v41.indexer import Selection
from vllm_deepinfer.models.deepseek_v41.moe import ExpertCounts, MixtureOfExperts
from vllm_deepinfer.models.deepseek_v41.probe import Quantity
from vllm_deepinfer.models.deepseek_v41.step import Step
from vllm_deepinfer.models.deepseek_v41.stored_weights import PlainLinear, RmsNorm, parameter
from vllm_deepinfer.ops.numerics import Numerics
from vllm_deepinfer.ops.rope import Rope, rope_frequencies, yarn_frequencies
from vllm_deepinfer.ops.streams import expand_streams, mix_streams


def window_rope(config: V41Config) -> Rope:
    """Rotation of layers with window attention only."""
    return Rope(rope_frequencies(config.qk_rope_head_dim, config.rope_theta))


def compressed_rope(config: V41Config) -> Rope:
    """Rotation of layers with compressed rows, their windows included."""
    scaling = config.rope_scaling
    return Rope(
        yarn_frequencies(
            config.qk_rope_head_dim,
            config.compress_rope_theta,
            scaling.factor,
            scaling.beta_fast,
            scaling.beta_slow,
            scaling.original_max_position_embeddings,
        )
    )


def expand(embedded: Tensor, streams: int, dtype: torch.dtype) -> Tensor:
    """Equal streams ``[T, S, D]`` from embeddings ``[T, D]``."""
    return embedded.to(dtype).unsqueeze(1).expand(-1, streams, -1).contiguous()


class TokenEmbedding(nn.Module):
    def __init__(self, vocab_size: int, width: int) -> None:
        super().__init__()
        self.weight = parameter(vocab_size, width)

    def forward(self, token_ids: Tensor) -> Tensor:
        return self.weight[token_ids]


class DecoderLayer(nn.Module):
    def __init__(
        self,
        config: V41Config,
        plan: LayerPlan,
        caches: LayerCaches,
        source: LayerCaches | None,
        rope: Rope,
        numerics: Numerics,
        experts: ExpertCounts,
        exchange: ExpertExchange,
    ) -> None:
        super().__init__()
        self.config, self.plan, self.numerics = config, plan, numerics
        add_mix_parameters(self, config)
        if plan.has_engram:
            rows = config.engram_num_embeddings[config.engram_layer_ids.index(plan.layer)]
            self.engram = Engram(config, plan.layer, exchange.held(rows), numerics)
        self.attn_norm = RmsNorm(config.hidden_size, config.rms_norm_eps, numerics)
        self.attn = Attention(config, plan, caches, source, rope, numerics)
        self.ffn_norm = RmsNorm(config.hidden_size, config.rms_norm_eps, numerics)
        self.ffn = MixtureOfExperts(config, plan.layer, experts, numerics, exchange)

    def forward(
        self,
        streams: Tensor,
        pre: Tensor,
        step: Step,
        shared: Selection,
        memories: Mapping[int, TableRows],
    ) -> tuple[Tensor, Tensor]:
        """Streams ``[T, S, D]`` and the pre-mix ``[T, S]`` for the next layer.

        Each half collapses the streams with the pre-mix computed half a layer earlier.

        Args:
            memories: the tokens' table rows, by engram layer.
        """
        if self.plan.has_engram:
            streams = self.engram(streams, memories[self.plan.layer])
        if step.probe is not None:
            step.probe.note(Quantity.STREAMS, self.plan.layer, streams)
            step.probe.note(Quantity.PRE_MIX, self.plan.layer, pre)
        dtype = self.numerics.dtype
        attn_pre, post, comb = layer_mixes(self, "attn", streams, self.config)
        x = self.attn_norm(mix_streams(streams, pre, dtype))
        streams = expand_streams(self.attn(x, step, shared), streams, post, comb, dtype)
        ffn_pre, post, comb = layer_mixes(self, "ffn", streams, self.config)
        x = self.ffn_norm(mix_streams(streams, attn_pre, dtype))
        out = self.ffn(x, step.rank_rows, step.probe)
        return expand_streams(out, streams, post, comb, dtype), ffn_pre


class Decoder(nn.Module):
    """Token ids to final hidden states; parameters are named as in the checkpoint."""

    def __init__(
        self, config: V41Config, numerics: Numerics, exchange: ExpertExchange | None = None
    ) -> None:
        super().__init__()
        self.config, self.numerics = config, numerics
        exchange = exchange or LocalExperts()
        self.caches = [layer_caches(config, plan, numerics) for plan in config.layers]
        plain, compressed = window_rope(config), compressed_rope(config)
        experts = ExpertCounts(config.n_routed_experts, config.num_experts_per_tok)
        self.embed = TokenEmbedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(
            DecoderLayer(
                config,
                plan,
                self.caches[plan.layer],
                None if plan.kv_source is None else self.caches[plan.kv_source],
                compressed if plan.ratio else plain,
                numerics,
                experts,
                exchange,
            )
            for plan in config.layers
        )
        engrams = [layer.engram for layer in self.layers if layer.plan.has_engram]
        self.engram_lookup = EngramLookup(engrams, exchange)
        self.norm = RmsNorm(config.hidden_size, config.rms_norm_eps, numerics)
        self.head = PlainLinear(config.hidden_size, config.vocab_size)

    @property
    def embed_tokens(self) -> TokenEmbedding:
        """The embedding, under the name vLLM's speculators look for."""
        return self.embed

    def all_caches(self) -> list[Cache]:
        return [cache for owned in self.caches for cache in owned.all()]

    def forward(
        self, token_ids: Tensor, step: Step, taps: dict[int, Tensor] | None = None
    ) -> Tensor:
        """Final normalised hidden states ``[T, D]`` of token ids ``[T]``.

        ``taps`` receives, for each of its layers, the mean over streams ``[T, D]`` at its entry.
        """
        streams = expand(self.embed(token_ids), self.config.hc_mult, self.numerics.dtype)
        pre = first_pre_mix(len(token_ids), self.config.hc_mult, token_ids.device)
        mean = torch.full_like(pre, 1 / self.config.hc_mult)
        memories, shared = self.engram_lookup.find(step), Selection()
        for number, layer in enumerate(self.layers):
            if taps is not None and number in taps:
                taps[number] = mix_streams(streams, mean, self.numerics.dtype)
            streams, pre = layer(streams, pre, step, shared, memories)
        if step.probe is not None:
            step.probe.note(Quantity.STREAMS, len(self.layers), streams)
        return self.norm(mix_streams(streams, pre, self.numerics.dtype))

    def join(self, rank_rows: RankRows) -> None:
        """Take part in a forward pass of other ranks, with no token of one's own."""
        if any(rank_rows):
            self.engram_lookup.join(rank_rows)
            for layer in self.layers:
                layer.ffn.join(rank_rows)

    def logits(self, hidden: Tensor) -> Tensor:
        """Float32 logits ``[n, V]`` of hidden states ``[n, D]``."""
        return self.head(hidden)
