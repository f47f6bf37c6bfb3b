"""Compressor: pools the tokens of a group into one latent row (section 2.7)."""

from __future__ import annotations

from torch import Tensor, nn

from vllm_deepinfer.models.deepseek_v41.cache import LayerCaches
from vllm_deepinfer.models.deepseek_v41.config import LayerPlan, V41Config
from vllm_deepinfer.models.deepseek_v41.step import Step
from vllm_deepinfer.models.deepseek_v41.stored_weights import PlainLinear, RmsNorm
from vllm_deepinfer.ops.caches import pool_pairs
from vllm_deepinfer.ops.numerics import Numerics
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
        self.wkv = PlainLinear(config.hidden_size, config.head_dim)
        if plan.ratio > 1:
            self.wgate = PlainLinear(config.hidden_size, config.head_dim)
        self.norm = RmsNorm(config.head_dim, config.rms_norm_eps, numerics)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        """Latents ``[n, head_dim]`` of the rows this step completes (``step.write_rows``)."""
        compressed, dtype = self.caches.compressed, self.numerics.dtype
        assert compressed is not None
        if self.plan.ratio == 1:
            pooled = self.wkv(x)
        else:
            pooled = self._pool(self.wkv(x), self.wgate(x), step)
        latents = self.norm(self.numerics.store(pooled))
        cos, sin = step.row_rotation(self.rope, compressed)
        compressed.store_rotated(step.write_rows(compressed).rows, latents, cos, sin, dtype)
        return latents

    def _pool(self, values: Tensor, scores: Tensor, step: Step) -> Tensor:
        ring, compressed = self.caches.open_group, self.caches.compressed
        assert ring is not None and compressed is not None
        pairs = step.pairs(ring, compressed)
        storage, _ = ring.rows
        return pool_pairs(
            values,
            scores,
            storage,
            pairs.closing,
            pairs.partner_rows,
            pairs.kept,
            pairs.kept_rows,
        )
