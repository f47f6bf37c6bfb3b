"""The CPU platform serves DeepSeek-V4.1 with the features vLLM's stock CPU platform switches off.

Claim: for this architecture, chunked prefill, prefix caching, async scheduling, the token budget
and the block size are what the user or vLLM's defaults say; the V2 model runner is chosen without
Triton; worker and scheduler fit together; and all of this survives vLLM running the hook again,
copying and pickling the configuration. If this breaks, the server silently runs without a prefix
cache, prefills in one piece, or miscounts tokens.
"""

from __future__ import annotations

import dataclasses
import os
import pickle

import pytest
from vllm.config.utils import replace
from vllm.platforms import current_platform

from vllm_deepinfer.platforms import cpu


def facts(config):
    """What this platform decides, as comparable values."""
    return {
        "v2": config.use_v2_model_runner,
        "async": config.scheduler_config.async_scheduling,
        "chunked": config.scheduler_config.enable_chunked_prefill,
        "prefix": config.cache_config.enable_prefix_caching,
        "budget": config.scheduler_config.max_num_batched_tokens,
        "block": config.cache_config.block_size,
        "worker": config.parallel_config.worker_cls,
        "scheduler": config.scheduler_config.get_scheduler_cls().__name__,
        "compilation": config.compilation_config.mode.name,
        "graphs": config.compilation_config.cudagraph_mode.name,
        "cache_bytes": config.cache_config.kv_cache_memory_bytes,
        "quantization": config.model_config.quantization,
    }


DEFAULTS = {
    "v2": True,
    "async": True,
    "chunked": True,
    "prefix": True,
    "block": 128,
    "worker": cpu.WORKER_CLASS,
    "scheduler": "DeepInferAsyncScheduler",
    "compilation": "NONE",
    "graphs": "NONE",
    "cache_bytes": cpu.DEFAULT_KV_CACHE_BYTES,
    "quantization": "deepseek_v41_stored",
}


def test_defaults(v41_config):
    assert isinstance(current_platform, cpu.DeepInferCpuPlatform)
    assert current_platform.support_hybrid_kv_cache()
    found = facts(v41_config())
    assert {key: found[key] for key in DEFAULTS} == DEFAULTS


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            {"async_scheduling": False},
            {"async": False, "scheduler": "DeepInferScheduler"},
        ),
        ({"enable_prefix_caching": False}, {"prefix": False, "chunked": True}),
        (
            {"enable_chunked_prefill": False, "max_num_batched_tokens": 4096},
            {"chunked": False, "budget": 4096},
        ),
        ({"max_num_batched_tokens": 64, "max_num_seqs": 8}, {"budget": 64}),
        ({"block_size": 64}, {"block": 64}),
        ({"kv_cache_memory_bytes": 1 << 26}, {"cache_bytes": 1 << 26}),
        ({"gpu_memory_utilization": 0.25}, {"cache_bytes": None}),
        ({"scheduler_cls": "vllm.v1.core.sched.scheduler.Scheduler"}, {"scheduler": "Scheduler"}),
        ({"dtype": "float32"}, {}),
        ({"additional_config": {"deepinfer": {"quantization": "off"}}}, {}),
    ],
    ids=str,
)
def test_the_users_settings_stand(v41_config, arguments, expected):
    found = facts(v41_config(**arguments))
    wanted = {**DEFAULTS, **expected}
    assert {key: found[key] for key in wanted} == wanted


def test_vllms_own_cache_variable_stands(v41_config, monkeypatch):
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "2")
    assert v41_config().cache_config.kv_cache_memory_bytes == 2 << 30


@pytest.mark.parametrize("arguments", [{}, {"block_size": 64, "async_scheduling": False}], ids=str)
def test_running_the_hook_again_changes_nothing(v41_config, arguments):
    config = v41_config(**arguments)
    before = facts(config)
    current_platform.check_and_update_config(config)
    assert facts(config) == before
    for copy in (
        dataclasses.replace(config),
        replace(config, instance_id="other"),
        pickle.loads(pickle.dumps(config)),
    ):
        assert facts(copy) == before


def test_workers_are_forked_unless_the_user_chose(v41_config, monkeypatch):
    v41_config()
    assert os.environ["VLLM_WORKER_MULTIPROC_METHOD"] == "fork"
    monkeypatch.setattr(cpu, "_USER_START_METHOD", "spawn")
    v41_config()
    assert os.environ["VLLM_WORKER_MULTIPROC_METHOD"] == "spawn"


def test_the_v1_runner_is_refused(v41_config, monkeypatch):
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "0")
    with pytest.raises(ValueError, match="VLLM_USE_V2_MODEL_RUNNER=0"):
        v41_config()


def test_what_the_v2_runner_lacks_is_refused_by_name(v41_config, monkeypatch):
    from vllm.config import VllmConfig

    monkeypatch.setattr(
        VllmConfig, "_get_v2_model_runner_unsupported_features", lambda self: ["time travel"]
    )
    with pytest.raises(ValueError, match="time travel"):
        v41_config()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batch_invariance": True}, ["batch_invariance", "batch_invariant", "quantization"]),
        ({"quantization": "fp4"}, ["fp4", "stored", "off"]),
    ],
    ids=str,
)
def test_bad_options_stop_the_start(v41_config, options, words):
    with pytest.raises(ValueError) as error:
        v41_config(additional_config={"deepinfer": options})
    for word in words:
        assert word in str(error.value)
