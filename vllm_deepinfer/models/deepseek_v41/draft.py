"""DSpark: the draft stages ``mtp.*`` as a pure torch module (section 4).

The target's taps become the context the stages attend to; one pass drafts a block, and a sequential
head conditions each draft on the one before it.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vllm_deepinfer.models.deepseek_v41.cache import Cache, layer_caches
from vllm_deepinfer.models.deepseek_v41.config import LayerPlan, V41Config
from vllm_deepinfer.models.deepseek_v41.decoder import (
    DecoderLayer,
    TokenEmbedding,
    expand,
    window_rope,
)
from vllm_deepinfer.models.deepseek_v41.expert_exchange import (
    ExpertExchange,
    LocalExperts,
    RankRows,
)
from vllm_deepinfer.models.deepseek_v41.hyper_connections import first_pre_mix
from vllm_deepinfer.models.deepseek_v41.indexer import Selection
from vllm_deepinfer.models.deepseek_v41.moe import ExpertCounts
from vllm_deepinfer.models.deepseek_v41.step import Step
from vllm_deepinfer.models.deepseek_v41.stored_weights import Fp8Linear, PlainLinear, RmsNorm
from vllm_deepinfer.ops.numerics import Numerics
from vllm_deepinfer.ops.rope import Rope
from vllm_deepinfer.ops.streams import mix_streams


class MarkovHead(nn.Module):
    """Bias on the next draft's logits from the token before it, low rank."""

    def __init__(self, config: V41Config) -> None:
        super().__init__()
        self.embed = TokenEmbedding(config.vocab_size, config.dspark_markov_rank)
        self.head = PlainLinear(config.dspark_markov_rank, config.vocab_size)


class ConfidenceHead(nn.Module):
    """How likely a draft survives verification, as a raw logit."""

    def __init__(self, config: V41Config) -> None:
        super().__init__()
        self.proj = PlainLinear(config.hidden_size + config.dspark_markov_rank, 1)


class DraftStage(DecoderLayer):
    """One draft layer; the first also projects the context, the last holds the heads."""

    def __init__(
        self,
        config: V41Config,
        stage: int,
        rope: Rope,
        numerics: Numerics,
        exchange: ExpertExchange,
    ) -> None:
        plan = LayerPlan(
            layer=config.num_hidden_layers + stage,
            ratio=0,
            kv_source=None,
            index_source=None,
            is_candidate_source=False,
            uses_candidates=False,
            has_engram=False,
        )
        experts = ExpertCounts(config.dspark_n_routed_experts, config.dspark_num_experts_per_tok)
        caches = layer_caches(config, plan, numerics)
        super().__init__(config, plan, caches, None, rope, numerics, experts, exchange)
        self.window: Cache = caches.window
        hidden, eps = config.hidden_size, config.rms_norm_eps
        if stage == 0:
            taps = len(config.dspark_target_layer_ids)
            self.main_proj = Fp8Linear(taps * hidden, hidden, numerics)
            self.main_norm = RmsNorm(hidden, eps, numerics)
        if stage == config.num_nextn_predict_layers - 1:
            self.norm = RmsNorm(hidden, eps, numerics)
            self.markov_head = MarkovHead(config)
            self.confidence_head = ConfidenceHead(config)


class Draft(nn.Module):
    """The draft stages; parameters are named as in the checkpoint.

    Embedding and output head are the target's and are passed in.
    """

    def __init__(
        self, config: V41Config, numerics: Numerics, exchange: ExpertExchange | None = None
    ) -> None:
        super().__init__()
        self.config, self.numerics = config, numerics
        exchange = exchange or LocalExperts()
        # One object for all stages: a step remembers the angles of a rope.
        self.rope = window_rope(config)
        self.mtp = nn.ModuleList(
            DraftStage(config, stage, self.rope, numerics, exchange)
            for stage in range(config.num_nextn_predict_layers)
        )

    def all_caches(self) -> list[Cache]:
        return [stage.window for stage in self.mtp]

    def context(self, taps: Tensor) -> Tensor:
        """Context features ``[T, D]`` from the target's concatenated taps ``[T, taps * D]``."""
        first = self.mtp[0]
        return first.main_norm(first.main_proj(self.numerics.activation(taps)))

    def store_context(self, context: Tensor, positions: Tensor, slots: list[Tensor]) -> None:
        """Write every stage's window rows of context features ``[T, D]`` at ``positions`` ``[T]``.

        ``slots`` holds, per stage, the cache row of each token, negative where none is written.
        """
        activation = self.numerics.activation(context)
        cos, sin = self.rope.at(positions.long())
        for stage, rows in zip(self.mtp, slots, strict=True):
            stage.attn.store_window(activation, rows, cos, sin)

    def forward(self, embedded: Tensor, step: Step) -> Tensor:
        """Head inputs ``[T, D]``, not yet normalised, of the blocks' embeddings ``[T, D]``."""
        streams = expand(embedded, self.config.hc_mult, self.numerics.dtype)
        pre = first_pre_mix(len(embedded), self.config.hc_mult, embedded.device)
        for stage in self.mtp:
            streams, pre = stage(streams, pre, step, Selection(), {})
        return mix_streams(streams, pre, self.numerics.dtype)

    def join(self, rank_rows: RankRows) -> None:
        """Take part in other ranks' drafting, with no block of one's own."""
        if any(rank_rows):
            for stage in self.mtp:
                stage.ffn.join(rank_rows)

    @property
    def confidence_head(self) -> ConfidenceHead:
        return self.last.confidence_head

    @property
    def last(self) -> DraftStage:
        return self.mtp[-1]

    def normalised(self, head_input: Tensor) -> Tensor:
        return self.last.norm(head_input)

    def markov_embed(self, token_ids: Tensor) -> Tensor:
        return self.last.markov_head.embed(token_ids)

    def markov_bias(self, markov: Tensor) -> Tensor:
        """Float32 ``[n, V]``, added to the base logits."""
        return self.last.markov_head.head(markov)

    def confidence_logits(self, head_input: Tensor, markov: Tensor) -> Tensor:
        """Raw confidence logits, float32 ``[n]``; ``markov`` embeds the token before the draft."""
        joined = torch.cat([head_input.to(torch.float32), markov.to(torch.float32)], -1)
        return self.last.confidence_head.proj(joined).squeeze(-1)
