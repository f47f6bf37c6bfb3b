"""What the worker tells the scheduler of a step, on the step's own output.

vLLM's runner output is a plain object that travels whole from worker to scheduler, in one process
or between two; the report rides on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

_ATTRIBUTE = "deepinfer_report"


@dataclass(frozen=True)
class BlockConfidences:
    """What the drafter said of the blocks drafted in a step.

    Attributes:
        request_ids: the request of each row.
        logits: float32 ``[n, K]``, raw confidence logit of each draft.
        probabilities: float32 ``[n, K]``, chance of each draft to survive given that those before
            it did, calibrated.
    """

    request_ids: list[str]
    logits: np.ndarray
    probabilities: np.ndarray


@dataclass(frozen=True)
class StepReport:
    """Attributes:
    confidences: None when nothing was drafted.
    forward_ms: time of the target's forward pass, waiting for other ranks included.
    sampler_ms: time of sampling, verification and drafting.
    profile: ``(tokens, ms)`` of forward passes timed at start-up, with the first step only.
    """

    confidences: BlockConfidences | None
    forward_ms: float
    sampler_ms: float
    profile: tuple[tuple[int, float], ...] = ()


def attach(output: Any, report: StepReport) -> None:
    """Put a report on a model runner's output."""
    setattr(output, _ATTRIBUTE, report)


def attached(output: Any) -> StepReport | None:
    """The report on an output; None on the output of a step that ran nothing."""
    return getattr(output, _ATTRIBUTE, None)
