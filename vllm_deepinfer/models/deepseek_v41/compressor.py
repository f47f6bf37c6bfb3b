"""Compressor: pools the tokens of a group into one latent row (section 2.7)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vllm_deepinfer.models.deepseek_v41.cache import Cache, LayerCaches
from vllm_deepinfer.models.deepseek_v41.config import LayerPlan, V41Config
from vllm_deepinfer.models.deepseek_v41.step import Step
from vllm_deepinfer.models.deepseek_v41.stored_weights import PlainLinear, RmsNorm
from vllm_deepinfer.ops.numerics import Numerics
from vllm_deepinfer.ops.reference import rotate_pairs
from vllm_deepinfer.ops.rope import Rope


class Compressor(nn.Module):
    """Owned by KV-source layers; writes compressed rows and returns the latents they came from."""

    def __init__(
        self,
        config: V41Config,
        plan: LayerPlan,
        caches: LayerCaches,
        rope: Rope,
        numerics: Numerics,
    ) -> None:
        super().__init__()
        self.plan, self.caches, self.rope, self.numerics = plan, caches, rope, numerics
        self.rope_dim = config.qk_rope_head_dim
        self.wkv = PlainLinear(config.hidden_size, config.head_dim)
        if plan.ratio > 1:
            self.wgate = PlainLinear(config.hidden_size, config.head_dim)
        self.norm = RmsNorm(config.head_dim, config.rms_norm_eps, numerics)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        """Latents ``[n, head_dim]`` of the rows this step completes (``step.write_rows``)."""
        assert self.caches.compressed is not None
        writes = step.write_rows(self.caches.compressed)
        if self.plan.ratio == 1:
            pooled = self.wkv(x)[writes.tokens]
        else:
            assert self.caches.open_group is not None
            state = torch.cat([self.wkv(x), self.wgate(x)], -1)
            pooled = pool_pairs(state, writes.tokens, step, self.caches.open_group)
        latents = self.norm(self.numerics.store(pooled))
        cos, sin = step.rotation(self.rope, self.plan.ratio)
        rotated = rotate_pairs(latents, cos[writes.tokens], sin[writes.tokens], self.rope_dim)
        self.caches.compressed.store(writes.rows, self.numerics.store(rotated))
        return latents


def pool_pairs(state: Tensor, closing: Tensor, step: Step, ring: Cache) -> Tensor:
    """Pool each closing token with the one before it, and keep open groups for later steps.

    Args:
        state: float32 ``[T, 2 * width]``, values and scores.
        closing: ``[n]`` tokens that complete a pair.
        ring: state of the newest tokens of each request; a partner computed in an earlier step is
            read from it.

    Returns:
        float32 ``[n, width]``, weighted per channel by the softmax over the pair's scores.
    """
    width = state.shape[-1] // 2
    partner = state[(closing - 1).clamp_min(0)]
    requests = step.request_of_token
    earlier = (closing == 0) | (requests[(closing - 1).clamp_min(0)] != requests[closing])
    waiting = earlier.nonzero().squeeze(1)
    if waiting.numel():
        rows = step.ring_rows(ring, step.positions - 1)[closing[waiting]]
        partner[waiting] = ring.load(rows)
    keep_open_groups(state, step, ring)
    pair = torch.stack([partner, state[closing]], 1)
    values, scores = pair.split([width, width], -1)
    return (torch.softmax(scores, 1) * values).sum(1)


def keep_open_groups(state: Tensor, step: Step, ring: Cache) -> None:
    """Write the newest tokens of each request, as many as the ring holds."""
    rows = step.ring_rows(ring, step.positions)
    newest = step.positions > step.newest_position - ring.rows_per_block
    kept = (newest & (rows >= 0)).nonzero().squeeze(1)
    ring.store(rows[kept], state[kept])
