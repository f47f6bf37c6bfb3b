"""The model's caches as vLLM sees them: cache layers, their specs, backend and step metadata.

Every cache is a layer of vLLM's hybrid KV-cache manager, which pages, shares and frees it. Nothing
here computes attention: the decoder reads and writes its caches itself, through the block tables
and slots this backend hands over.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

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
from vllm_deepinfer.models.deepseek_v41.uniform_step import UniformStep
from vllm_deepinfer.worker.sync_guard import allow_sync

if TYPE_CHECKING:
    from vllm.config import VllmConfig

WINDOW_BLOCK_TOKENS = 32
"""A window of 128 tokens straddles five such blocks; larger blocks would waste more of the pool."""


@dataclass(frozen=True)
class CacheMetadata:
    """What a step knows of one group of caches.

    Attributes:
        is_captured: the step is recorded in a graph, or warms up for that: all ranks run it alike.
        is_uniform: every request has the same few tokens, and the host should not read the
            device's memory to prepare the step.
    """

    common: CommonAttentionMetadata
    block_tokens: int
    is_ring: bool
    is_captured: bool = False
    is_uniform: bool = False

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
        ngram_token_ids: see ``Step``, padded alike; a model without engram has none.
    """
    first = metadata[names[0]]
    common = first.common
    starts = common.query_start_loc_cpu.tolist()
    count = starts[-1]
    if ngram_token_ids is None:
        ngram_token_ids = positions.new_empty(count, 0)
    parts = {
        "positions": positions[:count].long(),
        "ngram_token_ids": ngram_token_ids[:count],
        "paging": {name: metadata[name].paging(count) for name in names},
        "probe": probe,
        "is_draft_block": is_draft_block,
    }
    if first.is_uniform:
        return UniformStep(
            tokens_per_request=starts[1], most_context_tokens=common.max_seq_len, **parts
        )
    with allow_sync():
        context_tokens = common.seq_lens[: len(starts) - 1].tolist()
    return Step(query_starts=starts, context_tokens=context_tokens, **parts)


def waits_of(step: Step) -> AbstractContextManager[None]:
    """Surrounds the forward pass of a step: prompts and uneven drafts have shapes that the host
    must read from the device; a uniform step has none, and waits in it are reported."""
    return nullcontext() if isinstance(step, UniformStep) else allow_sync()


def is_captured(metadata: dict[str, CacheMetadata], names: list[str]) -> bool:
    """Whether the step is recorded in a graph; see ``CacheMetadata``."""
    return metadata[names[0]].is_captured


class CacheMetadataBuilder(AttentionMetadataBuilder[CacheMetadata]):
    """Hands a step's metadata over as it is.

    A platform with the attribute ``captures_decode_steps`` has decode steps recorded in graphs,
    and pays for every look of the host into the device's memory.
    """

    def __init__(
        self,
        kv_cache_spec: KVCacheSpec,
        layer_names: list[str],
        vllm_config: VllmConfig,
        device: torch.device,
    ) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        self._decode_tokens = (
            1 + vllm_config.num_speculative_tokens if captures_decode_steps() else 0
        )

    @classmethod
    def get_cudagraph_support(
        cls, vllm_config: VllmConfig, kv_cache_spec: KVCacheSpec
    ) -> AttentionCGSupport:
        if captures_decode_steps():
            return AttentionCGSupport.UNIFORM_BATCH
        return AttentionCGSupport.NEVER

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,
    ) -> CacheMetadata:
        uniform = is_uniform(common_attn_metadata.query_start_loc_cpu, self._decode_tokens)
        return self._metadata(common_attn_metadata, is_uniform=uniform)

    def build_for_cudagraph_capture(
        self, common_attn_metadata: CommonAttentionMetadata
    ) -> CacheMetadata:
        return self._metadata(common_attn_metadata, is_captured=True, is_uniform=True)

    def _metadata(self, common: CommonAttentionMetadata, **kind: bool) -> CacheMetadata:
        spec = self.kv_cache_spec
        return CacheMetadata(common, spec.block_size, isinstance(spec, CircularBufferSpec), **kind)


def captures_decode_steps() -> bool:
    """Whether the platform records decode steps in graphs."""
    from vllm.platforms import current_platform

    return getattr(type(current_platform), "captures_decode_steps", False)


def is_uniform(query_starts: Tensor, most_tokens: int) -> bool:
    """Whether all requests have the same number of tokens, at most ``most_tokens``.

    Args:
        query_starts: int32 ``[R + 1]`` in the host's memory, from 0.
    """
    size = int(query_starts[1])
    return 0 < size <= most_tokens and bool((query_starts.diff() == size).all())


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
