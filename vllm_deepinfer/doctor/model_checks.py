"""Checks of a model and its options: each a small function (case) -> finding.

They run on a configuration that vLLM and the platform accepted, and look for what would stop or
surprise a server later.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

from vllm_deepinfer.config import DeepInferConfig
from vllm_deepinfer.doctor.features import Graphs, routed_experts_bytes
from vllm_deepinfer.doctor.findings import Finding, error, not_checked, warning
from vllm_deepinfer.doctor.memory import MemoryPlan

if TYPE_CHECKING:
    from vllm.config import VllmConfig

_GIB = 1 << 30


@dataclass(frozen=True)
class Case:
    """A model to serve.

    folder: where its files are; None for a preset, or for a name that vLLM downloads.
    platform: the platform that would serve it.
    memory: None where this package's class does not serve.
    memory_bytes: memory of this machine for the CPU platform, of each device otherwise; None if
        unknown.
    """

    config: VllmConfig
    options: DeepInferConfig
    platform: str
    folder: Path | None
    graphs: Graphs
    memory: MemoryPlan | None
    memory_bytes: int | None


def draft_length(case: Case) -> Finding | None:
    from vllm_deepinfer.models.deepseek_v41.config import ConfigError, V41Config
    from vllm_deepinfer.models.deepseek_v41.draft_model import check_draft_length

    speculative = case.config.speculative_config
    if speculative is None:
        return None
    try:
        config = V41Config.from_hf(speculative.draft_model_config.hf_config)
        check_draft_length(speculative.num_speculative_tokens, config)
    except ConfigError as problem:
        return error("draft_length", str(problem))
    return None


def graph_coverage(case: Case) -> Finding | None:
    """Sizes are tokens: with drafts, a decode step has several per request."""
    if case.graphs.covers_largest_decode:
        return None
    return warning(
        "graph_coverage",
        f"A decode step of all requests has {case.graphs.largest_decode_tokens} tokens, and the "
        f"largest captured graph {max(case.graphs.with_drafts_tokens)}: full batches run without "
        "a graph.",
        "Raise --max-cudagraph-capture-size or lower --max-num-seqs.",
    )


def cache_fits(case: Case) -> Finding | None:
    """vLLM starts only if the KV cache holds one request of full length."""
    if case.memory is None or case.memory.pool.problem is None:
        return None
    pool, length = case.memory.pool, case.config.model_config.max_model_len
    return error(
        "cache_fits",
        f"The KV cache has {_gib(pool.size_bytes)}, and one request of {length} tokens takes "
        f"{_gib(pool.full_request_bytes)}.",
        "Raise --kv-cache-memory-bytes or lower --max-model-len.",
    )


def memory_fits(case: Case) -> Finding | None:
    """All ranks of a CPU server share this machine's memory; others have a device each."""
    if case.memory is None:
        return _least_of_vllms_class(case)
    pool_bytes = case.memory.pool.size_bytes or 0
    ranks = [rank.total_bytes + pool_bytes for rank in case.memory.ranks]
    is_cpu = case.platform == "cpu"
    needed = sum(ranks) if is_cpu else max(ranks)
    who = f"all {len(ranks)} rank(s)" if is_cpu else "the largest rank"
    what = f"Weights and KV cache of {who} take {_gib(needed)}"
    if case.memory_bytes is None:
        fix = "" if is_cpu else "Give --device-memory-gib to check it."
        return not_checked("memory_fits", f"{what}; what there is, is not known here.", fix)
    usable = case.memory_bytes if is_cpu else _usable_bytes(case, case.memory_bytes)
    if needed <= usable:
        return None
    return error(
        "memory_fits",
        f"{what}, and {_gib(usable)} can be used" + (" on this machine." if is_cpu else "."),
        "Serve a smaller checkpoint, "
        + ("use fewer ranks, " if is_cpu else "spread experts over more ranks, ")
        + "or lower --kv-cache-memory-bytes.",
    )


def _least_of_vllms_class(case: Case) -> Finding:
    """Its memory is not planned here, but every routed expert lies on some GPU as it is stored."""
    num_gpus = case.config.parallel_config.world_size_across_dp
    experts_bytes = routed_experts_bytes(case.config)
    unknown = "vLLM's own model class serves; its memory is not planned here."
    if case.memory_bytes is None:
        fix = "Give --device-memory-gib to check at least its experts."
        return not_checked("memory_fits", unknown, fix)
    usable = _usable_bytes(case, case.memory_bytes)
    if experts_bytes <= num_gpus * usable:
        return not_checked("memory_fits", f"{unknown} Its routed experts fit.")
    return error(
        "memory_fits",
        f"The routed experts alone take {_gib(experts_bytes)}, and {_gib(usable)} can be used on "
        f"each of {num_gpus} GPU(s).",
        "Spread them over more GPUs: --data-parallel-size with --enable-expert-parallel, or "
        "--tensor-parallel-size.",
    )


def _usable_bytes(case: Case, device_bytes: int) -> int:
    return int(device_bytes * case.config.cache_config.gpu_memory_utilization)


def _gib(num_bytes: float) -> str:
    return f"{num_bytes / _GIB:.2f} GiB"


def weights_present(case: Case) -> Finding | None:
    from vllm_deepinfer.models.deepseek_v41.checkpoint_files import (
        CheckpointFilesError,
        shard_paths,
    )

    if case.folder is None or case.config.load_config.load_format == "dummy":
        return None
    try:
        shard_paths(case.folder)
    except CheckpointFilesError as problem:
        return warning("weights_present", str(problem), "Enough for this report, not to serve.")
    return None


def tokenizer_fits(case: Case) -> Finding | None:
    """Engram layers hash token texts with the checkpoint's own tokenizer."""
    from vllm_deepinfer.models.deepseek_v41.config import ConfigError, V41Config
    from vllm_deepinfer.models.deepseek_v41.prepare import TOKENIZER_NAME, load_engram_constants

    if case.folder is None:
        return None
    if not (case.folder / TOKENIZER_NAME).is_file():
        return warning(
            "tokenizer_fits",
            f"{case.folder} has no {TOKENIZER_NAME}; the engram layers need it.",
            "Enough for this report, not to serve.",
        )
    try:
        load_engram_constants(V41Config.from_hf(case.config.model_config.hf_config), case.folder)
    except ConfigError as problem:
        return error("tokenizer_fits", str(problem))
    return None


def calibration_fits(case: Case) -> Finding | None:
    from vllm_deepinfer.models.deepseek_v41.draft_model import read_calibration

    speculative = case.config.speculative_config
    if speculative is None or not case.options.confidence_calibration:
        return None
    try:
        read_calibration(
            case.options, speculative.draft_model_config, speculative.num_speculative_tokens
        )
    except (ValueError, OSError) as problem:
        return error("calibration_fits", str(problem))
    return None


def idle_options(case: Case) -> Finding | None:
    """An option that does nothing is a mistake of whoever set it."""
    defaults = DeepInferConfig()
    changed = {
        spec.name
        for spec in fields(defaults)
        if getattr(case.options, spec.name) != getattr(defaults, spec.name)
    }
    needs = {name: _needs(name, case) for name in sorted(changed)}
    reasons = "; ".join(f"{name} needs {need}" for name, need in needs.items() if need)
    if not reasons:
        return None
    return warning("idle_options", f"Options without effect: {reasons}.", "Remove them.")


def _needs(option: str, case: Case) -> str | None:
    """What has to be set for `option` to act and is not, or None."""
    options, drafts = case.options, case.config.speculative_config is not None
    if option == "sync_guard" and case.platform == "cpu":
        return "an accelerator to wait for"
    if option == "npu_torch_ops" and case.platform != "ascend950":
        return "the platform ascend950"
    if option in ("verification", "confidence_calibration", "draft_records") and not drafts:
        return "--speculative-config"
    if option in ("verification_min_benefit", "step_cost_file") and options.verification == "all":
        return "verification adaptive"
    if option in ("ttft_target_ms", "itl_target_ms") and options.prefill_vote != "slo":
        return "prefill_vote slo"
    cadence = ("prefill_all_interval", "prefill_resume_interval")
    if option in cadence and options.prefill_vote != "cadence":
        return "prefill_vote cadence"
    if option.startswith("prefill_") and option != "prefill_vote" and options.prefill_vote == "off":
        return "prefill_vote cadence or slo"
    return None


CHECKS: tuple[Callable[[Case], Finding | None], ...] = (
    draft_length,
    graph_coverage,
    cache_fits,
    memory_fits,
    weights_present,
    tokenizer_fits,
    calibration_fits,
    idle_options,
)


def check_model(case: Case) -> list[Finding]:
    """The findings of all checks, in their order."""
    return [finding for check in CHECKS if (finding := check(case)) is not None]
