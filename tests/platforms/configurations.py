"""Stand-ins for a VllmConfig, with the parts that the rules of every platform read."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any


def allowed() -> SimpleNamespace:
    """A configuration that no rule refuses."""
    return SimpleNamespace(
        parallel_config=SimpleNamespace(
            tensor_parallel_size=1,
            pipeline_parallel_size=1,
            data_parallel_size=2,
            data_parallel_size_local=2,
            data_parallel_backend="mp",
            data_parallel_external_lb=False,
            data_parallel_hybrid_lb=False,
            distributed_executor_backend="mp",
            nnodes=1,
            enable_elastic_ep=False,
            enable_fault_tolerance=False,
            enable_ep_weight_filter=False,
            enable_dbo=False,
            ubatch_size=0,
            all2all_backend="allgather_reducescatter",
            expert_placement_strategy="linear",
            prefill_context_parallel_size=1,
            decode_context_parallel_size=1,
            enable_eplb=False,
        ),
        cache_config=SimpleNamespace(
            cache_dtype="auto", block_size=16, user_specified_block_size=False
        ),
        scheduler_config=SimpleNamespace(disable_hybrid_kv_cache_manager=None),
        model_config=SimpleNamespace(
            dtype="torch.bfloat16", runner_type="generate", enable_prompt_embeds=False
        ),
        lora_config=None,
        speculative_config=None,
        kv_transfer_config=None,
        watermark_config=None,
    )


def with_value(config: SimpleNamespace, path: str, value: Any) -> SimpleNamespace:
    """``config`` with the field at ``path``, which it must have, set to ``value``."""
    *parents, name = path.split(".")
    owner = config
    for parent in parents:
        owner = getattr(owner, parent)
    assert hasattr(owner, name)
    setattr(owner, name, value)
    return config
