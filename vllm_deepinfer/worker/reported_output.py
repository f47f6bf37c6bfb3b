"""A step's output with a report that is on its way from the device.

vLLM resolves outputs in a thread of their own, or when the host needs them; the report's copies and
events are waited for there, never where steps are launched. An output with a report leaves once its
step has drafted, not as soon as it has sampled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from vllm.v1.outputs import AsyncModelRunnerOutput
from vllm.v1.worker.gpu.async_utils import stream

from vllm_deepinfer.scheduler.step_report import BlockConfidences, StepReport, attach
from vllm_deepinfer.worker.step_clock import TimedStep

# The head's sigmoid in float32 is 1 from a logit of 17 on.
_LARGEST_LOGIT = 16.0


@dataclass
class PendingConfidences:
    """Confidences of the blocks a step drafted, on their way to the host.

    Args:
        request_ids: the request of each row.
        probabilities: float32 ``[n, K]`` in host memory.
        logits: the same; None where the model keeps none.
        held: what the copies read, until they are done.
    """

    request_ids: list[str]
    probabilities: Tensor
    logits: Tensor | None
    held: tuple[Tensor, ...]

    def arrived(self) -> BlockConfidences:
        """What came; call it when the copies are done."""
        probabilities = self.probabilities.numpy().copy()
        logits = self.logits if self.logits is not None else logits_of(self.probabilities)
        return BlockConfidences(self.request_ids, logits.numpy().copy(), probabilities)


def logits_of(probabilities: Tensor) -> Tensor:
    """Logits of a sigmoid's float32 outputs, within ±16."""
    return torch.logit(probabilities.double()).float().clamp(-_LARGEST_LOGIT, _LARGEST_LOGIT)


def send_confidences(
    request_ids: list[str], speculator: Any, main_stream: Any, copy_stream: Any
) -> PendingConfidences:
    """Start copying a step's confidences; the next step may write over the device's.

    Call ``done.record(copy_stream)`` of one's own event after it.
    """
    count = len(request_ids)
    # This package's drafter leaves them at one address, so that replays of a graph do too.
    kept = getattr(speculator.model, "confidence_logits", None)
    held = [speculator.draft_token_confidence_probs[:count].float().clone()]
    if kept is not None:
        held.append(kept[: held[0].numel()].view(count, -1).clone())
    with stream(copy_stream, main_stream):
        copy_stream.wait_stream(main_stream)
        copies = [tensor.to("cpu", non_blocking=True) for tensor in held]
    logits = copies[1] if kept is not None else None
    return PendingConfidences(list(request_ids), copies[0], logits, tuple(held))


class ReportedOutput(AsyncModelRunnerOutput):
    """vLLM's output of a step, and the report to attach to it.

    Args:
        inner: vLLM's.
        step: the step's events.
        confidences: on their way; None where nothing was drafted.
        copied: event behind the copies.
        profile: as in ``StepReport``.
    """

    def __init__(
        self,
        inner: AsyncModelRunnerOutput,
        step: TimedStep,
        confidences: PendingConfidences | None,
        copied: Any,
        profile: tuple[tuple[int, float], ...],
    ) -> None:
        self._inner, self._step, self._confidences = inner, step, confidences
        self._copied, self._profile = copied, profile

    def get_output(self) -> Any:
        output = self._inner.get_output()
        self._step.end.synchronize()
        confidences = None
        if self._confidences is not None:
            self._copied.synchronize()
            confidences = self._confidences.arrived()
        report = StepReport(
            confidences, self._step.forward_ms(), self._step.sampler_ms(), self._profile
        )
        attach(output, report)
        return output

    def get_kv_connector_output(self) -> Any:
        """What executors of vLLM 0.33 ask of an output before it is resolved."""
        return self._inner.get_kv_connector_output()
