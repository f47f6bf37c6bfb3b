"""The worker's side of confidences: read what the drafter said, send it with the step's output."""

from __future__ import annotations

from typing import Any

from vllm_deepinfer.scheduler.confidences import DraftConfidence, attach


def enable_confidences(speculator: Any) -> None:
    """Make vLLM's DSpark speculator evaluate the confidence head.

    It does so by itself only for its own adaptive verification, which needs CUDA graphs.
    """
    if speculator is not None and speculator.model.model.confidence_head is not None:
        speculator.use_confidence_head = True


def send_confidences(output: Any, speculator: Any) -> None:
    """Attach the confidences of the blocks just drafted to a step's output."""
    runner_output = getattr(output, "model_runner_output", output)
    if runner_output is None or speculator is None or not runner_output.req_ids:
        return
    count = len(runner_output.req_ids)
    probabilities = speculator.draft_token_confidence_probs[:count].tolist()
    logits = speculator.model.newest_confidence_logits.view(count, -1).tolist()
    rows = zip(runner_output.req_ids, logits, probabilities, strict=True)
    attach(
        runner_output,
        {name: DraftConfidence(tuple(raw), tuple(said)) for name, raw, said in rows},
    )
