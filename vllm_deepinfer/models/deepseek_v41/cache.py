"""The caches the model reads and writes: declarations, independent of who allocates them.

Every layer keeps window KV; KV-source layers keep compressed rows, index keys and, when two tokens
share a row, the state of the group that is still open. Source: V4.1 specification, section 5.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

import torch
from torch import Tensor

from vllm_deepinfer.models.deepseek_v41.config import LayerPlan, V41Config
from vllm_deepinfer.ops.caches import load_rows, store_rotated
from vllm_deepinfer.ops.numerics import Numerics
from vllm_deepinfer.ops.records import PlainRecord, Record

OPEN_GROUP_ROWS = 8
"""Rows of the open-group ring of a request; a power of two, so it divides every block size."""


class CacheKind(Enum):
    WINDOW = "window"
    COMPRESSED = "compressed"
    INDEX_KEY = "index_key"
    OPEN_GROUP = "open_group"


@dataclass
class Cache:
    """One layer's cache of one kind.

    Attributes:
        name: unique name; holds the layer number as its only integer.
        record: how a row is stored.
        tokens_per_row: tokens that share one row.
        storage: uint8 ``[blocks, rows_per_block, record.num_bytes]`` once bound; blocks may be
            strided.
    """

    name: str
    kind: CacheKind
    record: Record
    tokens_per_row: int = 1
    storage: Tensor | None = field(default=None, repr=False)

    def bind(self, storage: Tensor) -> None:
        if storage.dtype != torch.uint8 or storage.shape[-1] != self.record.num_bytes:
            raise ValueError(
                f"cache {self.name} was given {tuple(storage.shape)} {storage.dtype}; it needs "
                f"uint8 rows of {self.record.num_bytes} bytes."
            )
        self.storage = storage

    @property
    def rows_per_block(self) -> int:
        return self._bound().shape[1]

    @property
    def rows(self) -> tuple[Tensor, int]:
        """The storage and the ``RecordKind`` of its rows, as operations take them."""
        return self._bound(), self.record.kind

    def load(self, rows: Tensor) -> Tensor:
        """Decode rows to float32 ``[..., width]``; zeros where they are negative."""
        return load_rows(self._bound(), rows, self.record.kind, self.record.width)

    def store_rotated(
        self, rows: Tensor, x: Tensor, cos: Tensor, sin: Tensor, dtype: torch.dtype
    ) -> None:
        """Rotate ``x`` ``[n, width]``, round it to ``dtype`` and store it in ``rows`` ``[n]``."""
        store_rotated(self._bound(), rows, x, cos, sin, self.record.kind, dtype)

    def _bound(self) -> Tensor:
        if self.storage is None:
            raise RuntimeError(f"cache {self.name} is used before it was allocated.")
        return self.storage


@dataclass(frozen=True)
class LayerCaches:
    """Caches owned by one layer; ``None`` where the layer owns none of that kind."""

    window: Cache
    compressed: Cache | None = None
    index_key: Cache | None = None
    open_group: Cache | None = None

    def all(self) -> list[Cache]:
        owned = (self.window, self.compressed, self.index_key, self.open_group)
        return [cache for cache in owned if cache is not None]


def layer_caches(config: V41Config, plan: LayerPlan, numerics: Numerics) -> LayerCaches:
    """Declare the caches that ``plan`` says its layer owns."""

    def declare(kind: CacheKind, record: Record, tokens_per_row: int = 1) -> Cache:
        return Cache(f"layers.{plan.layer}.attn.{kind.value}", kind, record, tokens_per_row)

    window = declare(CacheKind.WINDOW, numerics.window_record(config.head_dim))
    if not plan.owns_kv:
        return LayerCaches(window)
    return LayerCaches(
        window=window,
        compressed=declare(
            CacheKind.COMPRESSED, numerics.compressed_record(config.head_dim), plan.ratio
        ),
        index_key=declare(
            CacheKind.INDEX_KEY, numerics.index_key_record(config.index_head_dim), plan.ratio
        ),
        open_group=(
            declare(CacheKind.OPEN_GROUP, PlainRecord(2 * config.head_dim, torch.float32))
            if plan.ratio > 1
            else None
        ),
    )
