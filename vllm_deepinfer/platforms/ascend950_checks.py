"""What cannot hold on an Ascend 950, refused at start-up: options, variables, versions."""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from vllm_deepinfer.config import DeepInferConfig
from vllm_deepinfer.platforms import our_model
from vllm_deepinfer.platforms.refusals import (
    CPU_RULES,
    Rule,
    UnsupportedOptionError,
    refuse_unsupported,
)
from vllm_deepinfer.registration import ARCHITECTURE

if TYPE_CHECKING:
    from vllm.config import VllmConfig

PLATFORM = "the Ascend 950 platform"
HCCL_TIMEOUT_S = 1836
BLOCK_SIZES_TOKENS = (32, 64, 128)

_WHOLE_HEADS = (
    "its attention takes the model's 64 query heads in one rank: use --data-parallel-size with "
    "--enable-expert-parallel"
)
_NO_CUDA_POOL = "the allocator it needs is CUDA's"


def _graph_mode(config: VllmConfig) -> str:
    return config.compilation_config.cudagraph_mode.name


def _compilation_mode(config: VllmConfig) -> str:
    return config.compilation_config.mode.name


def _dtype_name(config: VllmConfig) -> str:
    return str(config.model_config.dtype).removeprefix("torch.")


def _block_size_tokens(config: VllmConfig) -> int | None:
    cache = config.cache_config
    return cache.block_size if cache.user_specified_block_size else None


def _adaptive_in_worker(config: VllmConfig) -> bool:
    speculative = config.speculative_config
    return bool(speculative and speculative.enable_adaptive_verification)


_OWN_RULES: tuple[Rule, ...] = (
    Rule(
        "--tensor-parallel-size",
        lambda c: c.parallel_config.tensor_parallel_size,
        (1,),
        _WHOLE_HEADS,
    ),
    Rule("--dtype", _dtype_name, ("bfloat16",), "its matrix units take formats of 16 bits or less"),
    Rule(
        "--block-size",
        _block_size_tokens,
        (None, *BLOCK_SIZES_TOKENS),
        "its cache operations take these",
    ),
    Rule(
        "--compilation-config cudagraph_mode",
        _graph_mode,
        ("NONE", "FULL_DECODE_ONLY"),
        "decode steps are captured whole; prompts have no two steps alike",
    ),
    Rule(
        "--compilation-config mode",
        _compilation_mode,
        ("NONE",),
        "the model's operations are opaque to a compiler",
    ),
    Rule(
        "--enable-dbo",
        lambda c: c.parallel_config.enable_dbo,
        (False,),
        "steps are not split in two here",
    ),
    Rule(
        "--ubatch-size",
        lambda c: c.parallel_config.ubatch_size,
        (0,),
        "steps are not split in two here",
    ),
    Rule(
        "--enable-sleep-mode",
        lambda c: c.model_config.enable_sleep_mode,
        (False,),
        _NO_CUDA_POOL,
    ),
    Rule(
        "--enable-cumem-allocator",
        lambda c: bool(c.model_config.enable_cumem_allocator),
        (False,),
        _NO_CUDA_POOL,
    ),
    Rule(
        "--speculative-config enable_adaptive_verification",
        _adaptive_in_worker,
        (False,),
        "verification is planned in the scheduler: set the option verification of "
        "--additional-config '{\"deepinfer\": {...}}' to adaptive",
    ),
)


def _rules() -> tuple[Rule, ...]:
    """The CPU platform's where this one has none of its own for an option."""
    own = {rule.flag for rule in _OWN_RULES}
    return tuple(rule for rule in CPU_RULES if rule.flag not in own) + _OWN_RULES


RULES = _rules()


def refuse_other_models(vllm_config: VllmConfig) -> None:
    """Serve one model only: another has no kernels here.

    Raises:
        UnsupportedOptionError: the configuration is for another architecture.
    """
    if not our_model.is_our_model(vllm_config):
        found = ", ".join(vllm_config.model_config.architectures or ()) or "unknown"
        raise UnsupportedOptionError(
            f"{PLATFORM} of vllm-deepinfer serves {ARCHITECTURE} only, not {found}; vllm-ascend "
            "serves other models: set DEEPINFER_PLATFORM=off and VLLM_PLUGINS=ascend."
        )


def refuse_what_cannot_hold(
    vllm_config: VllmConfig,
    options: DeepInferConfig,
    environ: Mapping[str, str] = os.environ,
    version_of: Callable[[str], str] = importlib.metadata.version,
) -> None:
    """Check options, the environment and versions.

    Raises:
        UnsupportedOptionError: names what is wrong, what is allowed and what to change.
    """
    refuse_unsupported(vllm_config, RULES, PLATFORM)
    _refuse_vllms_class(options)
    _refuse_broken_promise(options)
    _refuse_uneven_experts(vllm_config)
    captures = vllm_config.compilation_config.cudagraph_mode.name != "NONE"
    refuse_environment(environ, captures)
    refuse_versions(environ, version_of)


def _refuse_vllms_class(options: DeepInferConfig) -> None:
    if options.model == "vllm":
        raise UnsupportedOptionError(
            f"model is vllm (allowed on {PLATFORM}: auto, deepinfer): vLLM has no class of "
            "DeepSeek-V4.1 for this device. Leave model out."
        )


def _refuse_broken_promise(options: DeepInferConfig) -> None:
    if options.batch_invariant:
        raise UnsupportedOptionError(
            f"batch_invariant is true (allowed on {PLATFORM}: false): its matrix products divide "
            "their sums by the size of the batch. Results of the same batch do repeat. Leave "
            "batch_invariant out."
        )


def _refuse_uneven_experts(vllm_config: VllmConfig) -> None:
    """Collectives among experts move equal shares."""
    parallel = vllm_config.parallel_config
    ranks = parallel.data_parallel_size
    if not parallel.enable_expert_parallel or ranks == 1:
        return
    text = vllm_config.model_config.hf_text_config
    for name in ("n_routed_experts", "dspark_n_routed_experts"):
        experts = getattr(text, name, None)
        if experts is not None and experts % ranks:
            divisors = [n for n in range(1, experts + 1) if experts % n == 0]
            raise UnsupportedOptionError(
                f"--data-parallel-size is {ranks} with --enable-expert-parallel, but {name} is "
                f"{experts} (allowed: {', '.join(map(str, divisors))}): every rank of {PLATFORM} "
                "holds equally many experts."
            )


def refuse_environment(environ: Mapping[str, str], captures_graphs: bool) -> None:
    """Refuse variables of the device's software, and of vLLM, that contradict the engine.

    Raises:
        UnsupportedOptionError: names the variable, its value and what is allowed.
    """
    if captures_graphs and environ.get("ASCEND_LAUNCH_BLOCKING", "0") != "0":
        raise UnsupportedOptionError(
            f"ASCEND_LAUNCH_BLOCKING is {environ['ASCEND_LAUNCH_BLOCKING']} (allowed with graphs: "
            "unset, 0): it waits after every launch, which a capture forbids. Unset it, or start "
            "with --enforce-eager."
        )
    if captures_graphs and environ.get("TASK_QUEUE_ENABLE", "0") not in ("0", "1"):
        raise UnsupportedOptionError(
            f"TASK_QUEUE_ENABLE is {environ['TASK_QUEUE_ENABLE']} (allowed with graphs: unset, 0, "
            "1): workspaces that level 2 queues do not belong to a capture. Unset it, or start "
            "with --enforce-eager."
        )
    timeout = environ.get("VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS")
    if timeout is not None and timeout.isdigit() and int(timeout) <= HCCL_TIMEOUT_S:
        raise UnsupportedOptionError(
            f"VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS is {timeout} (allowed on {PLATFORM}: more than "
            f"{HCCL_TIMEOUT_S}, after which HCCL says which rank is missing). Unset it or raise it."
        )


def refuse_versions(environ: Mapping[str, str], version_of: Callable[[str], str]) -> None:
    """Refuse a torch_npu made for another torch.

    Raises:
        UnsupportedOptionError: their minor versions differ, or torch_npu is not installed.
    """
    from vllm_deepinfer import envs
    from vllm_deepinfer.worker.npu_device import VENDOR_MODULE

    if envs.npu_module(environ) != VENDOR_MODULE:
        return
    try:
        npu = version_of("torch-npu")
    except importlib.metadata.PackageNotFoundError:
        npu = "not installed"
    torch = version_of("torch")
    if npu.split(".")[:2] != torch.split(".")[:2]:
        series = ".".join(torch.split(".")[:2])
        raise UnsupportedOptionError(
            f"torch-npu is {npu} and torch is {torch} (allowed: both {series}): install "
            f"torch-npu=={series}.*."
        )
