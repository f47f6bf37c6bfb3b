"""A worker on SM100 sizes its cache by a step that computes, where this package's class serves.

If this breaks, the memory of the class's activations goes to the cache, and the first long prompt
is out of memory. What such a step is, tests/npu runs on a device.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from vllm_deepinfer.worker.sm100 import Sm100Model


class Runner:
    def profile_run(self):
        raise AssertionError("not called here")


class Vllms:
    """Tells whether ``profile_run`` is vLLM's own while the memory is determined."""

    def determine_available_memory(self):
        return "profile_run" in vars(self.model_runner)


class Worker(Sm100Model, Vllms):
    def __init__(self, chosen, cache_bytes):
        self._chosen = chosen
        self.cache_config = SimpleNamespace(kv_cache_memory_bytes=cache_bytes)
        self.model_runner = Runner()


@pytest.mark.parametrize(
    ("chosen", "cache_bytes", "computes"),
    [("deepinfer", None, True), ("deepinfer", 1 << 30, False), ("vllm", None, False)],
)
def test_the_profile_computes_where_vllms_would_not(chosen, cache_bytes, computes):
    worker = Worker(chosen, cache_bytes)
    assert worker.determine_available_memory() is computes
    assert "profile_run" not in vars(worker.model_runner)
