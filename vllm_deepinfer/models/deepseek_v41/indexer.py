"""Indexer: chooses the compressed rows each token attends to (section 2.8)."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from vllm_deepinfer.models.deepseek_v41.cache import Cache
from vllm_deepinfer.models.deepseek_v41.config import LayerPlan, V41Config
from vllm_deepinfer.models.deepseek_v41.probe import Quantity
from vllm_deepinfer.models.deepseek_v41.step import QueryGroup, Step
from vllm_deepinfer.models.deepseek_v41.stored_weights import Fp8Linear, PlainLinear, RmsNorm
from vllm_deepinfer.ops.numerics import Activation, Numerics
from vllm_deepinfer.ops.reference import (
    candidate_rows,
    index_scores,
    rotate_pairs,
    select_highest,
    selected_rows,
)
from vllm_deepinfer.ops.rope import Rope

MAX_SCORES = 1 << 24
"""Scores of one head batch computed at once; longer queries are split."""


@dataclass
class Selection:
    """What layers of one forward pass share: the newest selection and candidate blocks.

    ``rows`` are cache rows ``[T, K]`` of the compressed rows to attend to, -1 padded;
    ``candidates`` holds, per query group and part that was scored, a boolean ``[G * q, n]``.
    """

    rows: Tensor | None = None
    candidates: dict[tuple[int, int], Tensor] = field(default_factory=dict)


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
        writes = step.write_rows(self.key_cache)
        keys = self.k_norm(self.numerics.store(self.wk(latents)))
        cos, sin = step.rotation(self.rope, self.plan.ratio)
        cos, sin = cos[writes.tokens], sin[writes.tokens]
        rotated = rotate_pairs(keys, cos, sin, self.config.qk_rope_head_dim)
        self.key_cache.store(writes.rows, self.numerics.store(rotated))

    def forward(self, query_latent: Activation, x: Tensor, step: Step, shared: Selection) -> Tensor:
        """Logical rows ``[T, K]`` to attend to, ascending, -1 padded.

        ``query_latent`` is the activation ``[T, q_lora_rank]`` that also feeds the queries.
        """
        longest = step.max_context_tokens // self.plan.ratio
        width = min(self.config.index_topk, longest)
        rows = torch.full((step.num_tokens, width), -1, dtype=torch.int64, device=x.device)
        query = weights = None
        for number, group in enumerate(step.query_groups):
            if group.max_tokens // self.plan.ratio <= width:
                rows[group.tokens.flatten()] = self._all_rows(group, step, width)
                continue
            if query is None or weights is None:
                query, weights = self._queries(query_latent, x, step)
            keys = self._keys(group, step)
            for part, tokens in enumerate(split_tokens(group, self.plan.ratio, self.heads)):
                chosen = self._choose(query, weights, keys, tokens, step, shared, (number, part))
                rows[tokens.flatten()] = selected_rows(chosen, width)
        return self._observed(rows, step)

    def _queries(self, query_latent: Activation, x: Tensor, step: Step) -> tuple[Tensor, Tensor]:
        numerics = self.numerics
        query = self.wq_b(query_latent).unflatten(-1, (self.heads, self.width))
        cos, sin = step.rotation(self.rope)
        query = rotate_pairs(query, cos, sin, self.config.qk_rope_head_dim)
        factor = self.width**-0.5 * self.heads**-0.5
        weights = numerics.rounded(numerics.rounded(self.weights_proj(x)) * factor)
        return numerics.index_vector(numerics.store(query)), weights

    def _all_rows(self, group: QueryGroup, step: Step, width: int) -> Tensor:
        visible = step.visible_rows(self.plan.ratio)[group.tokens.flatten()].unsqueeze(1)
        every = torch.arange(width, device=visible.device).expand(visible.shape[0], width)
        return every.masked_fill(every >= visible, -1)

    def _keys(self, group: QueryGroup, step: Step) -> Tensor:
        """Index keys ``[G, n, width]`` of the longest context's rows in each request."""
        logical = torch.arange(group.max_tokens // self.plan.ratio, device=group.tokens.device)
        every = logical.expand(len(group.requests), len(logical))
        return self.key_cache.load(step.locate_in_requests(self.key_cache, group.requests, every))

    def _choose(
        self,
        query: Tensor,
        weights: Tensor,
        keys: Tensor,
        tokens: Tensor,
        step: Step,
        shared: Selection,
        part: tuple[int, int],
    ) -> Tensor:
        """Boolean ``[G * q, n]`` of the rows chosen for ``tokens`` ``[G, q]``."""
        num_visible = step.visible_rows(self.plan.ratio)[tokens]
        visible = torch.arange(keys.shape[1], device=tokens.device) < num_visible.unsqueeze(-1)
        scores = index_scores(query[tokens], weights[tokens], keys, visible, self.numerics)
        scores = scores.flatten(0, 1)
        if self.plan.is_candidate_source:
            config = self.config
            shared.candidates[part] = candidate_rows(
                scores, num_visible.flatten(), config.candidate_block_size,
                config.candidate_topk_blocks,
            )  # fmt: skip
        elif self.plan.uses_candidates:
            scores = scores.masked_fill(~shared.candidates[part], float("-inf"))
        choose = select_highest if step.probe is None else step.probe.choose_rows
        return choose(scores, self.config.index_topk)

    def _observed(self, rows: Tensor, step: Step) -> Tensor:
        if step.probe is None:
            return rows
        forced = step.probe.forced(Quantity.INDEX_ROWS, self.plan.layer)
        rows = rows if forced is None else forced
        step.probe.note(Quantity.INDEX_ROWS, self.plan.layer, rows)
        return rows


def split_tokens(group: QueryGroup, ratio: int, heads: int) -> list[Tensor]:
    """Split a group's tokens ``[G, q]`` along q so that one part's scores stay in memory."""
    per_query = group.tokens.shape[0] * heads * max(group.max_tokens // ratio, 1)
    return list(group.tokens.split(max(MAX_SCORES // per_query, 1), dim=1))
