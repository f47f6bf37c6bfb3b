"""What the scheduler says of itself at start."""

from __future__ import annotations

from vllm_deepinfer.config import DeepInferConfig
from vllm_deepinfer.scheduler.step_cost import StepCost


def describe_vote(options: DeepInferConfig, num_ranks: int) -> str:
    """One sentence: who votes, by which rule and within which bounds."""
    if options.prefill_vote == "off":
        return "Prefill vote off: vLLM computes prompts in any step."
    ranks = "one rank" if num_ranks == 1 else f"{num_ranks} ranks"
    if options.prefill_vote == "slo":
        rule = (
            f"first token within {options.ttft_target_ms:g} ms, {options.itl_target_ms:g} ms "
            "between tokens"
        )
    else:
        rule = (
            f"if all want after {options.prefill_all_interval} decode steps, bursts "
            f"{options.prefill_resume_interval} apart"
        )
    return (
        f"Prefill vote of {ranks} by {options.prefill_vote}: {rule}; if any wants after "
        f"{options.prefill_any_interval}; {options.prefill_phases} phases, bursts of at most "
        f"{options.prefill_max_steps} steps, KV watermark {options.prefill_kv_watermark:g}."
    )


def describe_verification(options: DeepInferConfig, num_drafts: int, cost: StepCost | None) -> str:
    """One sentence: how many drafts are verified, and where prices come from."""
    if options.verification == "all":
        return f"Verification of all {num_drafts} drafts."
    prices = "profiled at start" if cost is None else describe_cost(cost)
    return (
        f"Verification of up to {num_drafts} drafts, {options.verification}, least benefit "
        f"{options.verification_min_benefit:.1%}; step costs {prices}."
    )


def describe_cost(cost: StepCost) -> str:
    """Source, sizes and times of a table of step costs."""
    sizes = ", ".join(str(size) for size, _ in cost.curve)
    first_ms, last_ms = cost.curve[0][1], cost.curve[-1][1]
    return f"{cost.source}: {sizes} tokens, {first_ms:.2f} to {last_ms:.2f} ms"
