"""What measured step costs depend on, so that those of another machine or setup are never used."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm_deepinfer.scheduler.cost_store import store_key

if TYPE_CHECKING:
    from vllm.config import VllmConfig


def cost_key(vllm_config: VllmConfig, rules: str) -> str:
    """Digest of everything in this process that a step's time depends on.

    Args:
        rules: how costs are learned; those of other rules are other costs.
    """
    return store_key(key_parts(vllm_config, rules))


def key_parts(vllm_config: VllmConfig, rules: str) -> dict[str, Any]:
    """The parts of the key, readable."""
    import torch
    import vllm

    from vllm_deepinfer import __version__

    parallel, cache = vllm_config.parallel_config, vllm_config.cache_config
    speculative = vllm_config.speculative_config
    return {
        "hardware": _hardware(),
        "versions": {"vllm": vllm.__version__, "torch": torch.__version__, "ours": __version__},
        "model": {
            "hash": vllm_config.model_config.compute_hash(),
            "num_drafts": speculative.num_speculative_tokens if speculative else 0,
            "options": repr(vllm_config.additional_config.get("deepinfer", {}).get("quantization")),
            "rules": rules,
        },
        "kv_format": {"dtype": str(cache.cache_dtype), "block_size": cache.block_size},
        "parallel_layout": {
            "data": parallel.data_parallel_size,
            "tensor": parallel.tensor_parallel_size,
            "pipeline": parallel.pipeline_parallel_size,
            "experts": parallel.enable_expert_parallel,
        },
    }


def _hardware() -> dict[str, Any]:
    from vllm.platforms import current_platform

    found = {"machine": platform.machine(), "threads": os.environ.get("OMP_NUM_THREADS", "")}
    found["cores"] = str(len(os.sched_getaffinity(0)))
    if current_platform.is_cpu():
        found["name"] = _cpu_name()
    else:
        found["name"] = current_platform.get_device_name()
    return found


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:  # not Linux
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if "model name" in line), "")
