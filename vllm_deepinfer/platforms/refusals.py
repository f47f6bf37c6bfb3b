"""What cannot hold for DeepSeek-V4.1 on a platform: refused at start-up, by name.

A platform has a tuple of rules; the CPU platform's is here. Every rule that fails is reported,
together, in one error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllm.config import VllmConfig

# The pool's cache groups pair two tokens per stored state, and the sliding window is 128 tokens.
BLOCK_SIZES_TOKENS = (32, 64, 128, 256)


class UnsupportedOptionError(ValueError):
    """vLLM was started with options that this platform cannot honour."""


@dataclass(frozen=True)
class Rule:
    """One refusal.

    flag: the command-line option to change.
    read: takes the configuration, gives the value in force.
    allowed: the values that hold.
    why: one clause that explains the limit.
    """

    flag: str
    read: Callable[[VllmConfig], Any]
    allowed: tuple[Any, ...]
    why: str


def _dtype_name(config: VllmConfig) -> str:
    return str(config.model_config.dtype).removeprefix("torch.")


def _block_size_tokens(config: VllmConfig) -> int | None:
    cache = config.cache_config
    return cache.block_size if cache.user_specified_block_size else None


def _ranks_of_this_machine(config: VllmConfig) -> int | None:
    """As a user set them: None if all ranks are here."""
    parallel = config.parallel_config
    here = parallel.data_parallel_size_local
    return None if here == parallel.data_parallel_size else here


_ONE_PROCESS = "each data-parallel rank runs the model in one process"
_ONE_SERVER = "one server starts all data-parallel ranks, on its own machine"
_FIXED_RANKS = "ranks and their experts stay as they were at the start"
_NOT_YET = "not available with this model yet"

CPU_RULES: tuple[Rule, ...] = (
    Rule(
        "--tensor-parallel-size",
        lambda c: c.parallel_config.tensor_parallel_size,
        (1,),
        _ONE_PROCESS,
    ),
    Rule(
        "--pipeline-parallel-size",
        lambda c: c.parallel_config.pipeline_parallel_size,
        (1,),
        _ONE_PROCESS,
    ),
    Rule(
        "--prefill-context-parallel-size",
        lambda c: c.parallel_config.prefill_context_parallel_size,
        (1,),
        _ONE_PROCESS,
    ),
    Rule(
        "--decode-context-parallel-size",
        lambda c: c.parallel_config.decode_context_parallel_size,
        (1,),
        _ONE_PROCESS,
    ),
    Rule(
        "--distributed-executor-backend",
        lambda c: c.parallel_config.distributed_executor_backend,
        (None, "mp", "uni"),
        _ONE_SERVER,
    ),
    Rule("--nnodes", lambda c: c.parallel_config.nnodes, (1,), _ONE_SERVER),
    Rule(
        "--data-parallel-backend",
        lambda c: c.parallel_config.data_parallel_backend,
        ("mp",),
        _ONE_SERVER,
    ),
    Rule("--data-parallel-size-local", _ranks_of_this_machine, (None,), _ONE_SERVER),
    Rule(
        "--data-parallel-external-lb (also set by --data-parallel-rank)",
        lambda c: c.parallel_config.data_parallel_external_lb,
        (False,),
        _ONE_SERVER,
    ),
    Rule(
        "--data-parallel-hybrid-lb",
        lambda c: c.parallel_config.data_parallel_hybrid_lb,
        (False,),
        _ONE_SERVER,
    ),
    Rule("--enable-eplb", lambda c: c.parallel_config.enable_eplb, (False,), _FIXED_RANKS),
    Rule(
        "--enable-elastic-ep",
        lambda c: c.parallel_config.enable_elastic_ep,
        (False,),
        _FIXED_RANKS,
    ),
    Rule(
        "--enable-fault-tolerance",
        lambda c: c.parallel_config.enable_fault_tolerance,
        (False,),
        _FIXED_RANKS,
    ),
    Rule(
        "--all2all-backend",
        lambda c: c.parallel_config.all2all_backend,
        ("allgather_reducescatter",),
        "tokens go to all ranks and outputs come back in these two collectives",
    ),
    Rule(
        "--expert-placement-strategy",
        lambda c: c.parallel_config.expert_placement_strategy,
        ("linear",),
        "each rank holds neighbouring experts",
    ),
    Rule(
        "--enable-ep-weight-filter",
        lambda c: c.parallel_config.enable_ep_weight_filter,
        (False,),
        "every rank checks the whole checkpoint, and keeps its own experts without this",
    ),
    Rule(
        "--enable-dbo",
        lambda c: c.parallel_config.enable_dbo,
        (False,),
        "a CPU has nothing to overlap collectives with",
    ),
    Rule(
        "--ubatch-size",
        lambda c: c.parallel_config.ubatch_size,
        (0,),
        "a CPU has nothing to overlap collectives with",
    ),
    Rule("--enable-lora", lambda c: c.lora_config is not None, (False,), _NOT_YET),
    Rule(
        "--speculative-config method",
        lambda c: c.speculative_config and c.speculative_config.method,
        (None, "dspark"),
        "the checkpoint's own draft stages are the only drafter",
    ),
    Rule(
        "--speculative-config draft_sample_method",
        lambda c: c.speculative_config and c.speculative_config.draft_sample_method,
        (None, "greedy"),
        "drafts are verified by drawing the target's own token, so random drafts gain nothing",
    ),
    Rule(
        "--speculative-config rejection_sample_method",
        lambda c: c.speculative_config and c.speculative_config.rejection_sample_method,
        (None, "standard"),
        "drafts are verified by drawing the target's own token",
    ),
    Rule(
        "--kv-transfer-config",
        lambda c: c.kv_transfer_config and c.kv_transfer_config.kv_connector,
        (None,),
        "moving its cache groups between servers is " + _NOT_YET,
    ),
    Rule(
        "--dtype",
        _dtype_name,
        ("bfloat16", "float32"),
        "the model's kernels compute in these",
    ),
    Rule(
        "--kv-cache-dtype",
        lambda c: c.cache_config.cache_dtype,
        ("auto",),
        "the model fixes the format of each of its caches",
    ),
    Rule(
        "--block-size",
        _block_size_tokens,
        (None, *BLOCK_SIZES_TOKENS),
        "cache blocks are cut to the sliding window and to pairs of tokens",
    ),
    Rule(
        "--disable-hybrid-kv-cache-manager",
        lambda c: bool(c.scheduler_config.disable_hybrid_kv_cache_manager),
        (False,),
        "the model has several kinds of cache",
    ),
    Rule("--runner", lambda c: c.model_config.runner_type, ("generate",), "it generates text"),
    Rule(
        "--enable-prompt-embeds",
        lambda c: c.model_config.enable_prompt_embeds,
        (False,),
        "engram needs token ids",
    ),
    Rule(
        "--watermark-config",
        lambda c: c.watermark_config is not None,
        (False,),
        "watermarking needs Triton",
    ),
)


def refuse_unsupported(
    vllm_config: VllmConfig,
    rules: tuple[Rule, ...] = CPU_RULES,
    platform: str = "the CPU platform",
) -> None:
    """Checks every rule of a platform.

    Raises:
        UnsupportedOptionError: names each option, its value and the values allowed.
    """
    broken = []
    for rule in rules:
        value = rule.read(vllm_config)
        if value not in rule.allowed:
            allowed = ", ".join("unset" if v is None else str(v) for v in rule.allowed)
            broken.append(f"{rule.flag} is {value} (allowed: {allowed}; {rule.why})")
    if broken:
        raise UnsupportedOptionError(f"DeepSeek-V4.1 on {platform} refuses: {'; '.join(broken)}.")
