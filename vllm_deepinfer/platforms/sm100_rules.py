"""What cannot hold for DeepSeek-V4.1 on SM100, by whose class of the model runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from vllm_deepinfer.config import DeepInferConfig
from vllm_deepinfer.platforms.refusals import CPU_RULES, Rule

if TYPE_CHECKING:
    from vllm.config import VllmConfig

WORKER_CLASS = "vllm_deepinfer.worker.sm100.DeepInferSm100Worker"
_OURS_ONLY = "vLLM's class of the model has none of it; choose model deepinfer"
_ONE_GPU = "this package's class runs on one GPU in this release; choose model vllm for more"
_FORMATS = (None, "fp8", "deepseek_v4_fp8", "deepseek_v41_stored")
_READS_STEPS = "this package's scheduler reads steps and confidences of one pipeline stage"


def _option(name: str) -> Callable[[VllmConfig], Any]:
    return lambda config: getattr(DeepInferConfig.from_vllm(config), name)


def _uses_our_scheduling(config: VllmConfig) -> bool:
    options = DeepInferConfig.from_vllm(config)
    return options.prefill_vote != "off" or options.verification != "all"


def _pipeline_stages_scheduled_by_us(config: VllmConfig) -> int:
    return config.parallel_config.pipeline_parallel_size if _uses_our_scheduling(config) else 1


def _drafter_planned_by_us(config: VllmConfig) -> str | None:
    planned = DeepInferConfig.from_vllm(config).verification != "all"
    speculative = config.speculative_config
    return speculative.method if planned and speculative is not None else None


def _replays_trimmed_drafts(config: VllmConfig) -> bool:
    planned = DeepInferConfig.from_vllm(config).verification != "all"
    return planned and config.model_config.return_sampling_mask


def _trims_by_vllm(config: VllmConfig) -> bool:
    speculative = config.speculative_config
    return speculative is not None and speculative.enable_adaptive_verification


def _trims_by_vllm_against_rules(config: VllmConfig) -> bool:
    return _option("verification")(config) == "compatible" and _trims_by_vllm(config)


_BOTH: tuple[Rule, ...] = (
    Rule(
        "--worker-cls",
        lambda c: c.parallel_config.worker_cls,
        ("auto", WORKER_CLASS),
        "this package's worker builds the model and reports its steps; extend it with "
        "--worker-extension-cls",
    ),
    Rule(
        "VLLM_USE_V2_MODEL_RUNNER (what it chooses)",
        lambda c: c.use_v2_model_runner,
        (True,),
        "the model and this package's scheduling need vLLM's V2 model runner",
    ),
    Rule(
        "--pipeline-parallel-size with prefill_vote or verification",
        _pipeline_stages_scheduled_by_us,
        (1,),
        _READS_STEPS,
    ),
    Rule(
        "--speculative-config method with verification",
        _drafter_planned_by_us,
        (None, "dspark"),
        "drafts are chosen by DSpark's confidences",
    ),
    Rule(
        "--return-sampling-mask with verification",
        _replays_trimmed_drafts,
        (False,),
        "what is replayed needs a fixed number of verified drafts; choose verification all",
    ),
    Rule(
        "--speculative-config enable_adaptive_verification with verification compatible",
        _trims_by_vllm_against_rules,
        (False,),
        "one planner trims drafts; leave it out, or choose verification adaptive",
    ),
)

VLLM_RULES: tuple[Rule, ...] = (
    *_BOTH,
    Rule("option quantization", _option("quantization"), ("stored",), _OURS_ONLY),
    Rule(
        "option batch_invariant",
        _option("batch_invariant"),
        (False,),
        "neither the sparse attention nor the experts of vLLM's class promise it; choose model "
        "deepinfer",
    ),
    Rule("option confidence_calibration", _option("confidence_calibration"), ("",), _OURS_ONLY),
)
"""Of vLLM's own class. What vLLM itself refuses stays vLLM's to refuse."""

_REPLACED = {
    "--enable-dbo": "the model's class has no overlap of collectives",
    "--ubatch-size": "the model's class has no overlap of collectives",
    "--watermark-config": "not tried with this model's sampling",
}


def _for_gpus(rule: Rule) -> Rule:
    """A rule of the CPU platform with a reason that is true here."""
    return Rule(rule.flag, rule.read, rule.allowed, _REPLACED.get(rule.flag, rule.why))


DEEPINFER_RULES: tuple[Rule, ...] = (
    *_BOTH,
    *map(_for_gpus, CPU_RULES),
    Rule("--data-parallel-size", lambda c: c.parallel_config.data_parallel_size, (1,), _ONE_GPU),
    Rule(
        "--quantization",
        lambda c: c.model_config.quantization,
        _FORMATS,
        "this package's class computes in the checkpoint's formats",
    ),
    Rule(
        "--speculative-config enable_adaptive_verification",
        _trims_by_vllm,
        (False,),
        "this package's class runs without the CUDA graphs it needs; choose verification adaptive",
    ),
)
"""Of this package's class: what its other platforms refuse, and more than one GPU."""
