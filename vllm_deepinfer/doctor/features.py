"""What a configuration turns on, what its platform refuses, and which graphs it captures."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vllm_deepinfer.config import DeepInferConfig

if TYPE_CHECKING:
    from vllm.config import VllmConfig

    from vllm_deepinfer.platforms.refusals import Rule

_PLATFORMS = "vllm_deepinfer.platforms"


@dataclass(frozen=True)
class Feature:
    """One feature of a configuration: its name, whether it is on, and how."""

    name: str
    is_on: bool
    detail: str


@dataclass(frozen=True)
class Graphs:
    """Which steps are captured in graphs, in tokens.

    mode: vLLM's name of the mode; "NONE" captures nothing.
    with_drafts_tokens: sizes with the drafting of the options, or without if there is none.
    without_drafts_tokens: sizes of the same options without drafting; None if they have none.
    largest_decode_tokens: tokens of a decode step of as many requests as are allowed.
    """

    mode: str
    with_drafts_tokens: tuple[int, ...]
    without_drafts_tokens: tuple[int, ...] | None
    largest_decode_tokens: int

    @property
    def covers_largest_decode(self) -> bool:
        sizes = self.with_drafts_tokens
        return not sizes or self.largest_decode_tokens <= max(sizes)


@dataclass(frozen=True)
class EngramTables:
    """The tables of the engram layers: the bytes of one copy, and where copies lie."""

    tables_bytes: int
    place: str


def runs_own_class(platform: str, options: DeepInferConfig) -> bool:
    """Whether this package's model class serves, rather than vLLM's own."""
    if platform != "sm100":
        return True
    from vllm_deepinfer.platforms.sm100_model import chosen_model

    return chosen_model(options) == "deepinfer"


def features(config: VllmConfig, platform: str) -> tuple[Feature, ...]:
    """The features that matter to a user of this model, in the order they are shown."""
    from vllm_deepinfer.scheduler.announce import describe_vote

    options = DeepInferConfig.from_vllm(config)
    parallel, scheduler, cache = (
        config.parallel_config,
        config.scheduler_config,
        config.cache_config,
    )
    own = runs_own_class(platform, options)
    return (
        Feature("model class", True, "vllm-deepinfer's" if own else "vLLM's"),
        Feature("dtype", True, str(config.model_config.dtype).removeprefix("torch.")),
        Feature(
            "quantization",
            options.quantization == "stored",
            "weights and caches in their stored formats",
        ),
        Feature("worker", True, _name(parallel.worker_cls)),
        Feature("scheduler", True, _name(scheduler.scheduler_cls)),
        Feature("async scheduling", bool(scheduler.async_scheduling), ""),
        Feature("prefix caching", bool(cache.enable_prefix_caching), ""),
        Feature(
            "chunked prefill",
            bool(scheduler.enable_chunked_prefill),
            f"{scheduler.max_num_batched_tokens} tokens per step",
        ),
        _drafting(config),
        _verification(config, options),
        Feature(
            "prefill vote",
            options.prefill_vote != "off",
            describe_vote(options, parallel.data_parallel_size),
        ),
        Feature("batch invariance", options.batch_invariant, ""),
        Feature(
            "ranks",
            parallel.world_size_across_dp > 1,
            f"data parallel {parallel.data_parallel_size}, tensor parallel "
            f"{parallel.tensor_parallel_size}",
        ),
        Feature("expert parallel", bool(parallel.enable_expert_parallel), ""),
        Feature("structured output", True, config.structured_outputs_config.backend),
    )


def _name(value: Any) -> str:
    return value if isinstance(value, str) else f"{value.__module__}.{value.__qualname__}"


def _drafting(config: VllmConfig) -> Feature:
    speculative = config.speculative_config
    if speculative is None:
        return Feature("drafting", False, "")
    return Feature(
        "drafting", True, f"{speculative.method}, {speculative.num_speculative_tokens} drafts"
    )


def _verification(config: VllmConfig, options: DeepInferConfig) -> Feature:
    from vllm_deepinfer.scheduler.announce import describe_verification

    speculative = config.speculative_config
    if speculative is None:
        return Feature("adaptive verification", False, "nothing is drafted")
    text = describe_verification(options, speculative.num_speculative_tokens, None)
    return Feature("adaptive verification", options.verification != "all", text)


def limits(platform: str, options: DeepInferConfig) -> tuple[Rule, ...]:
    """The rules by which a platform refuses options."""
    if platform == "cpu":
        return importlib.import_module(f"{_PLATFORMS}.refusals").CPU_RULES
    if platform == "ascend950":
        return importlib.import_module(f"{_PLATFORMS}.ascend950_checks").RULES
    rules = importlib.import_module(f"{_PLATFORMS}.sm100_rules")
    return rules.DEEPINFER_RULES if runs_own_class(platform, options) else rules.VLLM_RULES


def graphs(config: VllmConfig, without_drafts: VllmConfig | None) -> Graphs:
    """Capture sizes of a configuration and of the same without drafting."""
    compilation, speculative = config.compilation_config, config.speculative_config
    drafts = 0 if speculative is None else speculative.num_speculative_tokens
    mode = compilation.cudagraph_mode
    return Graphs(
        mode="NONE" if mode is None else mode.name,
        with_drafts_tokens=_sizes(config),
        without_drafts_tokens=None if without_drafts is None else _sizes(without_drafts),
        largest_decode_tokens=config.scheduler_config.max_num_seqs * (1 + drafts),
    )


def _sizes(config: VllmConfig) -> tuple[int, ...]:
    return tuple(sorted(config.compilation_config.cudagraph_capture_sizes or ()))


def engram_tables(config: VllmConfig, platform: str) -> EngramTables:
    """The engram tables of a configuration of this package's model."""
    from vllm_deepinfer.models.deepseek_v41.config import V41Config
    from vllm_deepinfer.models.deepseek_v41.schema import schema, total_bytes

    tensors = schema(V41Config.from_hf(config.model_config.hf_config))
    tables = [tensor for name, tensor in tensors.items() if ".engram.embed." in name]
    own = runs_own_class(platform, DeepInferConfig.from_vllm(config))
    place = _place(config, platform) if own else _place_of_vllm(config)
    return EngramTables(total_bytes(tables), place)


def routed_experts_bytes(config: VllmConfig) -> int:
    """The routed experts of the target as they are stored; draft stages' are not counted."""
    from vllm_deepinfer.models.deepseek_v41.config import V41Config
    from vllm_deepinfer.models.deepseek_v41.schema import schema, total_bytes

    tensors = schema(V41Config.from_hf(config.model_config.hf_config))
    return total_bytes(
        tensor
        for name, tensor in tensors.items()
        if ".ffn.experts." in name and not name.startswith("mtp.")
    )


def _place(config: VllmConfig, platform: str) -> str:
    memory = "memory of the machine" if platform == "cpu" else "memory of the device"
    parallel = config.parallel_config
    if parallel.enable_expert_parallel and parallel.data_parallel_size > 1:
        return f"{memory}, split over all ranks"
    return f"{memory}, one copy for each data-parallel rank"


def _place_of_vllm(config: VllmConfig) -> str:
    """Where vLLM's own class puts them, by `--engram-config`."""
    settings = config.engram_config
    split = "split over tensor-parallel ranks"
    if settings.embedding_across_dp:
        split = "split over all ranks"
    elif settings.cpu_offload and settings.dp_shared_memory is not False:
        split += ", one copy for the data-parallel ranks of a node that can share it"
    else:
        split += ", one copy for each data-parallel rank"
    memory = "pinned memory of the host" if settings.cpu_offload else "memory of the device"
    return f"{memory}, {split}"
