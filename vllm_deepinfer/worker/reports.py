"""The worker's side of step reports: what a step took and what the drafter said."""

from __future__ import annotations

from typing import Any

from vllm_deepinfer.scheduler.step_report import BlockConfidences, StepReport, attach


def enable_confidences(speculator: Any) -> None:
    """Make vLLM's DSpark speculator evaluate the confidence head.

    It does so by itself only for its own adaptive verification, which needs CUDA graphs.
    """
    if speculator is not None and speculator.model.model.confidence_head is not None:
        speculator.use_confidence_head = True


def forget_block(speculator: Any) -> None:
    """Call before a step's drafting, so that a step that drafts nothing has no confidences.

    vLLM drafts nothing in steps whose drafts no request can use (since 0.33).
    """
    if speculator is not None:
        speculator.model.newest_confidence_logits = None


def send_report(
    output: Any,
    speculator: Any,
    forward_ms: float,
    sampler_ms: float,
    profile: tuple[tuple[int, float], ...],
) -> bool:
    """Attach a report to a step's output; False where the step has no output to carry it."""
    runner_output = getattr(output, "model_runner_output", output)
    if runner_output is None or not runner_output.req_ids:
        return False
    confidences = None
    if speculator is not None:
        confidences = _confidences(runner_output.req_ids, speculator)
    attach(runner_output, StepReport(confidences, forward_ms, sampler_ms, profile))
    return True


def _confidences(request_ids: list[str], speculator: Any) -> BlockConfidences | None:
    newest, count = speculator.model.newest_confidence_logits, len(request_ids)
    if newest is None:
        return None
    # Copies: the speculator writes the next step's into the same memory.
    probabilities = speculator.draft_token_confidence_probs[:count].float().numpy().copy()
    logits = newest.view(count, -1).float().numpy().copy()
    return BlockConfidences(list(request_ids), logits, probabilities)
