"""Gloo groups as vLLM makes them for its engines, for tests that run several ranks at once."""

from __future__ import annotations

from datetime import timedelta

from torch.distributed import FileStore, PrefixStore, ProcessGroup
from vllm.distributed.utils import init_gloo_process_group


def make_group(store_path: str, rank: int, num_ranks: int, timeout_s: float = 60) -> ProcessGroup:
    """One rank's end of a group whose ranks meet at the file `store_path`. Waits for all."""
    store = PrefixStore("engines", FileStore(store_path, num_ranks))
    return init_gloo_process_group(store, rank, num_ranks, timedelta(seconds=timeout_s))
