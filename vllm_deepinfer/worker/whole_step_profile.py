"""Lets vLLM's memory profile see a whole step of this model.

vLLM profiles a forward pass before there is a KV cache. This model reads and writes its caches
itself, so such a pass computes nothing, and all the memory its activations need would be given to
the cache. Here the profile goes on with the largest step over the smallest cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from vllm.v1.worker.gpu import cudagraph_utils


def sized_by_whole_step(worker: Any) -> AbstractContextManager[None]:
    """The region in which a worker of this package's class determines the memory for its cache.

    Nothing is added where the user gave the cache's size: vLLM then profiles for other reasons.
    """
    if worker.cache_config.kv_cache_memory_bytes is not None:
        return nullcontext()
    return whole_step(worker.model_runner)


@contextmanager
def whole_step(runner: Any) -> Iterator[None]:
    """In this region, ``profile_run`` of a V2 model runner computes with caches too."""
    plain = runner.profile_run

    def profile_run(*args: Any, **kwargs: Any) -> None:
        plain(*args, **kwargs)
        run_largest_step(runner)

    runner.profile_run = profile_run
    try:
        yield
    finally:
        del runner.profile_run


def run_largest_step(runner: Any) -> None:
    """Compute a step of as many tokens as one may have; the caches for it are freed again."""
    cudagraph_utils._init_minimal_kv_cache_for_profiling(runner)
    try:
        runner._dummy_run(runner.max_num_tokens, is_profile=True)
    finally:
        cudagraph_utils._teardown_profiling_state(runner)
