"""Which planner trims drafts on SM100: this package's in the scheduler, vLLM's in the worker, none.

vLLM's has variable lengths in CUDA graphs, which the scheduler's cannot have; it is used where it
can run, with costs kept up to date by ``worker.adaptive_costs``. It is on exactly where vLLM's
``enable_adaptive_verification`` is, and the scheduler's exactly where that is off: there is no
configuration with both.
"""

from __future__ import annotations

from dataclasses import fields
from importlib.util import find_spec
from typing import TYPE_CHECKING

from vllm_deepinfer.config import DeepInferConfig
from vllm_deepinfer.platforms.refusals import UnsupportedOptionError

if TYPE_CHECKING:
    from vllm.config import VllmConfig

_MANAGER_MODULE = "vllm.v1.worker.gpu.spec_decode.adaptive_verification"
_FLAG = "enable_adaptive_verification"
_DEFAULTS = DeepInferConfig()


def plan_in_worker(vllm_config: VllmConfig, options: DeepInferConfig, model: str) -> str:
    """Turn vLLM's planner on where the options ask for one and it can run. Idempotent.

    Returns:
        a clause for the announcement: who trims drafts, and why not vLLM where it is not.

    Raises:
        UnsupportedOptionError: an option has no meaning with vLLM's planner.
    """
    speculative = vllm_config.speculative_config
    if speculative is None:
        return "no drafts"
    if options.verification == "all":
        if getattr(speculative, _FLAG, False):
            return "drafts trimmed by vLLM with the costs of its start-up profile"
        return "all drafts verified"
    if options.verification == "compatible":
        return "drafts trimmed by the scheduler (verification compatible)"
    if missing := what_workers_planner_lacks(vllm_config, model):
        return f"drafts trimmed by the scheduler ({missing})"
    _refuse_options_of_the_scheduler(options)
    speculative.enable_adaptive_verification = True
    return "drafts trimmed by vLLM in the worker with costs measured as it serves"


def what_workers_planner_lacks(vllm_config: VllmConfig, model: str) -> str:
    """Why vLLM's planner cannot run with this configuration, as a clause; empty if it can."""
    speculative = vllm_config.speculative_config
    mode = vllm_config.compilation_config.cudagraph_mode
    if model == "deepinfer":
        return "this package's class runs without CUDA graphs"
    if _FLAG not in {spec.name for spec in fields(speculative)} or not find_spec(_MANAGER_MODULE):
        return "this vLLM has no adaptive verification"
    if mode is None or not mode.has_full_cudagraphs():
        return "no full CUDA graphs"
    if vllm_config.lora_config is not None:
        return "LoRA"
    if getattr(vllm_config.model_config, "enable_return_routed_experts", False):
        return "routed experts are returned"
    return ""


def _refuse_options_of_the_scheduler(options: DeepInferConfig) -> None:
    """Raises UnsupportedOptionError for options that would go unheard."""
    unheard = [
        f"{name} is {getattr(options, name)!r} (allowed: {getattr(_DEFAULTS, name)!r})"
        for name in ("draft_records", "verification_min_benefit")
        if getattr(options, name) != getattr(_DEFAULTS, name)
    ]
    if unheard:
        raise UnsupportedOptionError(
            "verification adaptive means vLLM's planner in the worker here, which knows no least "
            "benefit and tells nobody which drafts it verified, while "
            f"{' and '.join(unheard)}. Leave that out, or turn CUDA graphs off (--enforce-eager) "
            "to have this package's planner."
        )
