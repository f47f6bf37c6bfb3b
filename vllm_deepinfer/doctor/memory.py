"""The memory plan of a configuration: weights, engram tables and KV cache of each rank.

The model's own modules are made without storage and measured, and vLLM's own planner divides the KV
cache, so that the numbers are those of a server with the same arguments.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch

from vllm_deepinfer.config import DeepInferConfig
from vllm_deepinfer.models.deepseek_v41.cache import OPEN_GROUP_ROWS, Cache, CacheKind
from vllm_deepinfer.models.deepseek_v41.config import V41Config
from vllm_deepinfer.models.deepseek_v41.decoder import Decoder
from vllm_deepinfer.models.deepseek_v41.draft import Draft
from vllm_deepinfer.models.deepseek_v41.expert_exchange import LocalExperts, contiguous_share
from vllm_deepinfer.ops.numerics import Numerics

if TYPE_CHECKING:
    from torch import nn
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheSpec

_ENGRAM_TABLE = ".engram.embed."
_EXPERTS = ".ffn.experts."
# More than any request needs: for planning where the size of the cache is not known beforehand.
_PLENTY_BYTES = 1 << 44


@dataclass(frozen=True)
class Weights:
    """Bytes of the weights of one rank.

    experts_bytes: routed experts, target and draft stages.
    engram_bytes: the tables of the engram layers, or its rows of them.
    drafts_bytes: the draft stages without their experts.
    other_bytes: everything else.
    """

    experts_bytes: int
    engram_bytes: int
    drafts_bytes: int
    other_bytes: int

    @property
    def total_bytes(self) -> int:
        return self.experts_bytes + self.engram_bytes + self.drafts_bytes + self.other_bytes


@dataclass(frozen=True)
class CacheUse:
    """What all caches of one kind take, over all layers that have one.

    kind: value of `CacheKind`.
    num_layers: how many layers have such a cache, draft stages included.
    row_bytes: one row of one layer.
    tokens_per_row: how many tokens share it.
    bytes_per_token: rows of all layers for one token of context; for the kinds that do not grow
        with the context, for one of the tokens kept.
    kept_tokens: rows of how many tokens a request keeps; None if of all.
    """

    kind: str
    num_layers: int
    row_bytes: int
    tokens_per_row: int
    bytes_per_token: float
    kept_tokens: int | None


@dataclass(frozen=True)
class Pool:
    """vLLM's plan of the KV cache of one rank.

    size_bytes: memory of the cache; None if the server finds it out at its start.
    num_blocks, num_tokens, num_full_requests: what fits; None if the size is not known or too
        little. A full request has as many tokens as the model's length allows.
    full_request_bytes: what one such request takes.
    problem: why vLLM's planner refuses the size, or None.
    """

    size_bytes: int | None
    block_bytes: int
    num_groups: int
    full_request_bytes: int
    num_blocks: int | None
    num_tokens: int | None
    num_full_requests: float | None
    problem: str | None


@dataclass(frozen=True)
class MemoryPlan:
    """Weights of every rank, and the KV cache of each."""

    ranks: tuple[Weights, ...]
    caches: tuple[CacheUse, ...]
    pool: Pool

    def as_json(self) -> dict[str, Any]:
        return {
            "ranks": [{**asdict(rank), "total_bytes": rank.total_bytes} for rank in self.ranks],
            "kv_caches": [asdict(cache) for cache in self.caches],
            "kv_pool": asdict(self.pool),
        }


class _Share(LocalExperts):
    """What one rank of several holds, with nobody to exchange tokens with."""

    def __init__(self, rank: int, num_ranks: int) -> None:
        self._rank, self._num_ranks = rank, num_ranks

    def held(self, count: int) -> range:
        return contiguous_share(count, self._rank, self._num_ranks)


def plan_memory(vllm_config: VllmConfig) -> MemoryPlan:
    """The plan for a configuration of this package's model.

    Raises:
        vllm_deepinfer.models.deepseek_v41.config.ConfigError: the model's configuration is unsound.
    """
    parallel = vllm_config.parallel_config
    num_ranks = parallel.data_parallel_size
    spread = num_ranks if parallel.enable_expert_parallel else 1
    modules = [_modules(vllm_config, _Share(rank % spread, spread)) for rank in range(num_ranks)]
    config = V41Config.from_hf(vllm_config.model_config.hf_config)
    caches = [cache for module in modules[0] for cache in module.all_caches()]
    return MemoryPlan(
        tuple(_weights(parts) for parts in modules),
        _cache_uses(caches, config),
        _pool(vllm_config, caches, config),
    )


def _modules(vllm_config: VllmConfig, experts: LocalExperts) -> list[Decoder | Draft]:
    """Target and, with drafting, draft stages of one rank, without storage."""
    config = V41Config.from_hf(vllm_config.model_config.hf_config)
    stored = DeepInferConfig.from_vllm(vllm_config).quantization == "stored"
    numerics = Numerics(vllm_config.model_config.dtype, stored)
    with torch.device("meta"):
        modules: list[Decoder | Draft] = [Decoder(config, numerics, experts)]
        if vllm_config.speculative_config is not None:
            modules.append(Draft(config, numerics, experts))
    return modules


def _weights(modules: list[Decoder | Draft]) -> Weights:
    sizes = {"experts": 0, "engram": 0, "drafts": 0, "other": 0}
    for module in modules:
        rest = "drafts" if isinstance(module, Draft) else "other"
        for name, num_bytes in _sizes(module):
            part = "engram" if _ENGRAM_TABLE in name else "experts" if _EXPERTS in name else rest
            sizes[part] += num_bytes
    return Weights(*(sizes[part] for part in ("experts", "engram", "drafts", "other")))


def _sizes(module: nn.Module) -> Iterable[tuple[str, int]]:
    for name, parameter in module.named_parameters():
        yield name, parameter.numel() * parameter.element_size()


def _cache_uses(caches: list[Cache], config: V41Config) -> tuple[CacheUse, ...]:
    uses = []
    kept = {CacheKind.WINDOW: config.sliding_window, CacheKind.OPEN_GROUP: OPEN_GROUP_ROWS}
    # Layers of one kind may differ in how many tokens share a row.
    shapes = Counter((c.kind.value, c.record.num_bytes, c.tokens_per_row) for c in caches)
    for (kind, row_bytes, tokens_per_row), layers in sorted(shapes.items()):
        per_token = layers * row_bytes / tokens_per_row
        uses.append(
            CacheUse(kind, layers, row_bytes, tokens_per_row, per_token, kept.get(CacheKind(kind)))
        )
    return tuple(uses)


def _pool(vllm_config: VllmConfig, caches: list[Cache], config: V41Config) -> Pool:
    from vllm.v1.core.kv_cache_utils import get_kv_cache_capacity

    specs = _specs(vllm_config, caches, config)
    size_bytes, problem = vllm_config.cache_config.kv_cache_memory_bytes, None
    try:
        planned = _planned(vllm_config, specs, size_bytes or _PLENTY_BYTES)
    except ValueError as refusal:  # less than one request of full length
        problem = str(refusal)
        planned = _planned(vllm_config, specs, _PLENTY_BYTES)
    # Blocks of all groups overlay each other, so every cache spans the whole pool.
    block_bytes = max(tensor.size for tensor in planned.kv_cache_tensors) // planned.num_blocks
    num_tokens, num_requests = get_kv_cache_capacity(vllm_config, planned)
    fits = size_bytes is not None and problem is None
    return Pool(
        size_bytes=size_bytes,
        block_bytes=block_bytes,
        num_groups=len(planned.kv_cache_groups),
        full_request_bytes=round(planned.num_blocks * block_bytes / num_requests),
        num_blocks=planned.num_blocks if fits else None,
        num_tokens=num_tokens if fits else None,
        num_full_requests=num_requests if fits else None,
        problem=problem,
    )


def _specs(
    vllm_config: VllmConfig, caches: list[Cache], config: V41Config
) -> dict[str, KVCacheSpec]:
    from vllm.config import set_current_vllm_config

    from vllm_deepinfer.models.deepseek_v41.kv_cache import CacheLayer

    with set_current_vllm_config(vllm_config):
        layers = [CacheLayer(cache, config.sliding_window, vllm_config) for cache in caches]
        return {layer.cache.name: layer.get_kv_cache_spec(vllm_config) for layer in layers}


def _planned(vllm_config: VllmConfig, specs: dict[str, KVCacheSpec], size_bytes: int) -> Any:
    """vLLM's plan, made the way its engine core makes it."""
    from vllm.config import set_current_vllm_config
    from vllm.v1.engine import core

    from vllm_deepinfer.models.deepseek_v41.kv_cache import CacheBackend

    with set_current_vllm_config(vllm_config):
        core.register_all_kvcache_specs(vllm_config)
        supported = [layout.name for layout in CacheBackend.supported_kv_cache_layouts()]
        core.resolve_kv_cache_layout(vllm_config, [supported], list(specs.values()))
        plan: list[Any] = [vllm_config, [dict(specs)], [size_bytes]]
        if hasattr(core, "get_global_kv_cache_groups"):  # from 0.33, grouping is a step of its own
            plan.append(core.get_global_kv_cache_groups(vllm_config, [dict(specs)]))
        return core.get_kv_cache_configs(*plan)[0]
