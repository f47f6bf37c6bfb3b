"""The model's caches as vLLM sees them: cache layers, their specs, backend and step metadata.

Every cache is a layer of vLLM's hybrid KV-cache manager, which pages, shares and frees it. Nothing
here computes attention: the decoder reads and writes its caches itself, through the block tables
and slots this backend hands over.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionCGSupport,
    AttentionMetadataBuilder,
    CommonAttentionMetadata,
    MultipleOf,
)
from vllm.v1.kv_cache_interface import (
    CircularBufferSpec,
    KVCacheSpec,
    MLAAttentionSpec,
    SlidingWindowMLASpec,
)
from vllm.v1.kv_cache_layout import KVCacheLayout

from vllm_deepinfer.models.deepseek_v41.cache import OPEN_GROUP_ROWS, Cache, CacheKind
from vllm_deepinfer.models.deepseek_v41.probe import Probe
from vllm_deepinfer.models.deepseek_v41.step import Paging, Step

if TYPE_CHECKING:
    from vllm.config import VllmConfig

WINDOW_BLOCK_TOKENS = 32
"""A window of 128 tokens straddles five such blocks; larger blocks would waste more of the pool."""


@dataclass(frozen=True)
class CacheMetadata:
    """What a step knows of one group of caches."""

    common: CommonAttentionMetadata
    block_tokens: int
    is_ring: bool

    def paging(self, num_tokens: int) -> Paging:
        slots = None if self.is_ring else self.common.slot_mapping[:num_tokens]
        return Paging(self.common.block_table_tensor, slots, self.block_tokens)


def step_of(
    metadata: dict[str, CacheMetadata],
    names: list[str],
    positions: Tensor,
    ngram_token_ids: Tensor | None = None,
    probe: Probe | None = None,
    is_draft_block: bool = False,
) -> Step:
    """The step that vLLM's metadata describes, for a model that owns the named caches.

    Args:
        positions: ``[T]``, padded at the end.
        ngram_token_ids: see ``Step``; a model without engram has none.
    """
    common = metadata[names[0]].common
    starts = common.query_start_loc_cpu.tolist()
    count = starts[-1]
    if ngram_token_ids is None:
        ngram_token_ids = positions.new_empty(count, 0)
    return Step(
        positions=positions[:count].long(),
        query_starts=starts,
        context_tokens=common.seq_lens[: len(starts) - 1].tolist(),
        ngram_token_ids=ngram_token_ids,
        paging={name: metadata[name].paging(count) for name in names},
        probe=probe,
        is_draft_block=is_draft_block,
    )


class CacheMetadataBuilder(AttentionMetadataBuilder[CacheMetadata]):
    _cudagraph_support: ClassVar[AttentionCGSupport] = AttentionCGSupport.NEVER

    def __init__(
        self,
        kv_cache_spec: KVCacheSpec,
        layer_names: list[str],
        vllm_config: VllmConfig,
        device: torch.device,
    ) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,
    ) -> CacheMetadata:
        spec = self.kv_cache_spec
        return CacheMetadata(
            common_attn_metadata, spec.block_size, isinstance(spec, CircularBufferSpec)
        )


class CacheBackend(AttentionBackend):
    """Declares the layout of the caches; the decoder itself is the implementation."""

    @staticmethod
    def get_name() -> str:
        return "DEEPINFER_V41"

    @staticmethod
    def get_impl_cls() -> None:
        return None

    @staticmethod
    def get_builder_cls() -> type[CacheMetadataBuilder]:
        return CacheMetadataBuilder

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: KVCacheSpec | None = None) -> list:
        return [MultipleOf(1)]

    @classmethod
    def supported_kv_cache_layouts(cls) -> tuple[KVCacheLayout, ...]:
        # Blocks outermost: the only layouts in which caches of unequal rows share one pool.
        return (KVCacheLayout.BLHNC,)


class CacheLayer(nn.Module, AttentionLayerBase):
    """One cache in vLLM's forward context."""

    def __init__(self, cache: Cache, sliding_window: int, vllm_config: VllmConfig) -> None:
        super().__init__()
        self.cache, self.sliding_window = cache, sliding_window
        context = vllm_config.compilation_config.static_forward_context
        if cache.name in context:
            raise ValueError(f"cache {cache.name} is declared twice.")
        context[cache.name] = self

    def get_attn_backend(self) -> type[AttentionBackend]:
        return CacheBackend

    def get_kv_cache_spec(self, vllm_config: VllmConfig) -> KVCacheSpec:
        row = {
            "num_kv_heads": 1,
            "head_size": self.cache.record.num_bytes,
            "dtype": torch.uint8,
        }
        if self.cache.kind is CacheKind.WINDOW:
            # Window rows are cached with the prefix: replaying them would not be exact.
            return SlidingWindowMLASpec(
                block_size=WINDOW_BLOCK_TOKENS,
                sliding_window=self.sliding_window,
                bounded_replay=False,
                **row,
            )
        if self.cache.kind is CacheKind.OPEN_GROUP:
            return CircularBufferSpec(block_size=OPEN_GROUP_ROWS, head_size_v=0, **row)
        return MLAAttentionSpec(
            block_size=vllm_config.cache_config.block_size,
            tokens_per_state=self.cache.tokens_per_row,
            **row,
        )

    def bind_kv_cache(self, kv_cache: Tensor) -> None:
        """Take the pool's view ``[blocks, 1, rows, bytes]`` of this cache."""
        self.cache.bind(kv_cache.squeeze(1))
