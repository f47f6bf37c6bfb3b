"""Cut a checkpoint into shards."""

from __future__ import annotations

from collections.abc import Iterable

from vllm_deepinfer.models.deepseek_v41.schema import UE8M0, TensorSpec, total_bytes

Unit = tuple[TensorSpec, ...]  # one tensor, or a quantised weight and its scale


def units(tensors: Iterable[TensorSpec]) -> list[Unit]:
    """Pair each quantised weight with the scale that follows it."""
    grouped: list[Unit] = []
    for spec in tensors:
        if spec.dtype == UE8M0:
            grouped[-1] += (spec,)
        else:
            grouped.append((spec,))
    return grouped


def plan_shards(grouped: Iterable[Unit], max_shard_bytes: int) -> list[list[Unit]]:
    """Fill shards in order; none exceeds ``max_shard_bytes`` unless one unit alone does.

    A weight and its scale always share a shard, which some engines require of engram tables.
    """
    shards: list[list[Unit]] = [[]]
    room = max_shard_bytes
    for unit in grouped:
        size = total_bytes(unit)
        if size > room and shards[-1]:
            shards.append([])
            room = max_shard_bytes
        shards[-1].append(unit)
        room -= size
    return shards


def shard_name(number: int, count: int) -> str:
    """Return the file name of shard ``number`` (from 0) of ``count``."""
    return f"model-{number + 1:05d}-of-{count:05d}.safetensors"
