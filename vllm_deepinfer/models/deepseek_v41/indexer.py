"""Indexer: chooses the compressed rows each token attends to (section 2.8)."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from vllm_deepinfer.models.deepseek_v41.cache import Cache
from vllm_deepinfer.models.deepseek_v41.config import LayerPlan, V41Config
from vllm_deepinfer.models.deepseek_v41.probe import Quantity
from vllm_deepinfer.models.deepseek_v41.step import Step
from vllm_deepinfer.models.deepseek_v41.stored_weights import Fp8Linear, PlainLinear, RmsNorm
from vllm_deepinfer.ops.indexer import candidate_blocks, index_scores, select_rows
from vllm_deepinfer.ops.numerics import Activation, Numerics
from vllm_deepinfer.ops.reference import selected_rows
from vllm_deepinfer.ops.rope import Rope
from vllm_deepinfer.ops.rotation import rotate

MAX_SCORES = 1 << 24
"""Scores in memory at once; those of more tokens are computed part by part."""


@dataclass
class Selection:
    """What layers of one forward pass share: the newest selection and candidate blocks.

    ``rows`` are cache rows ``[T, K]`` of the compressed rows to attend to, -1 padded;
    ``candidates`` holds, per part of the tokens, a boolean ``[tokens, blocks]``.
    """

    rows: Tensor | None = None
    candidates: dict[int, Tensor] = field(default_factory=dict)


class Indexer(nn.Module):
    def __init__(
        self,
        config: V41Config,
        plan: LayerPlan,
        key_cache: Cache,
        rope: Rope,
        numerics: Numerics,
    ) -> None:
        super().__init__()
        self.config, self.plan, self.rope, self.numerics = config, plan, rope, numerics
        self.key_cache = key_cache
        self.heads, self.width = config.index_n_heads, config.index_head_dim
        self.wq_b = Fp8Linear(config.q_lora_rank, self.heads * self.width, numerics)
        self.weights_proj = PlainLinear(config.hidden_size, self.heads)
        if plan.owns_kv:
            self.wk = PlainLinear(config.head_dim, self.width)
            self.k_norm = RmsNorm(self.width, config.rms_norm_eps, numerics)

    def store_keys(self, latents: Tensor, step: Step) -> None:
        """Write the index keys of the rows this step completes; ``latents`` ``[n, head_dim]``."""
        keys = self.k_norm(self.numerics.store(self.wk(latents)))
        cos, sin = step.row_rotation(self.rope, self.key_cache)
        rows = step.write_rows(self.key_cache).rows
        self.key_cache.store_rotated(rows, keys, cos, sin, self.numerics.dtype)

    def forward(self, query_latent: Activation, x: Tensor, step: Step, shared: Selection) -> Tensor:
        """Logical rows ``[T, K]`` to attend to, ascending, -1 padded.

        ``query_latent`` is the activation ``[T, q_lora_rank]`` that also feeds the queries. A token
        that sees no more rows than are selected takes them all, unscored.
        """
        ratio, most = self.plan.ratio, self.config.index_topk
        longest = step.max_context_tokens // ratio
        rows = step.first_rows(ratio, min(most, longest))
        if longest > most:
            rows = rows.clone()
            query, weights = self._queries(query_latent, x, step)
            tokens = step.tokens_beyond(ratio, most)
            for part, chosen in enumerate(tokens.split(max(MAX_SCORES // longest, 1))):
                scores = self._scores(query[chosen], weights[chosen], chosen, step)
                num_visible = step.visible_rows(ratio)[chosen]
                rows[chosen] = self._choose(scores, num_visible, step, shared, part)
        return self._observed(rows, step)

    def _queries(self, query_latent: Activation, x: Tensor, step: Step) -> tuple[Tensor, Tensor]:
        numerics = self.numerics
        query = self.wq_b(query_latent).unflatten(-1, (self.heads, self.width))
        cos, sin = step.rotation(self.rope)
        factor = self.width**-0.5 * self.heads**-0.5
        weights = numerics.rounded(numerics.rounded(self.weights_proj(x)) * factor)
        return rotate(query, cos, sin, numerics.dtype), weights

    def _scores(self, query: Tensor, weights: Tensor, tokens: Tensor, step: Step) -> Tensor:
        """Float32 ``[n, rows]`` of the tokens ``[n]``."""
        storage, kind = self.key_cache.rows
        return index_scores(
            query,
            weights,
            storage,
            kind,
            step.paging[self.key_cache.name].block_table,
            step.request_of_token[tokens],
            step.visible_rows(self.plan.ratio)[tokens],
            step.max_context_tokens // self.plan.ratio,
            self.numerics.dtype == torch.bfloat16,
        )

    def _choose(
        self, scores: Tensor, num_visible: Tensor, step: Step, shared: Selection, part: int
    ) -> Tensor:
        """Rows ``[n, index_topk]`` chosen by scores ``[n, rows]``."""
        most, block_rows = self.config.index_topk, self.config.candidate_block_size
        if self.plan.is_candidate_source:
            shared.candidates[part] = candidate_blocks(
                scores, num_visible, block_rows, self.config.candidate_topk_blocks
            )
        blocks = shared.candidates[part] if self.plan.uses_candidates else None
        if step.probe is None:
            return select_rows(scores, most, blocks, block_rows)
        if blocks is not None:
            kept = blocks.repeat_interleave(block_rows, 1)[:, : scores.shape[1]]
            scores = scores.masked_fill(~kept, float("-inf"))
        return selected_rows(step.probe.choose_rows(scores, most), most)

    def _observed(self, rows: Tensor, step: Step) -> Tensor:
        if step.probe is None:
            return rows
        forced = step.probe.forced(Quantity.INDEX_ROWS, self.plan.layer)
        rows = rows if forced is None else forced
        step.probe.note(Quantity.INDEX_ROWS, self.plan.layer, rows)
        return rows
