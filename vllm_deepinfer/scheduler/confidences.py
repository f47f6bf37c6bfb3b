"""Confidences on their way from the worker to the scheduler, and what became of the drafts.

The worker attaches what the drafter said of each request's new block to the step's output; the
scheduler keeps it until that block's verification comes back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_ATTRIBUTE = "deepinfer_confidences"


@dataclass(frozen=True)
class DraftConfidence:
    """What the drafter said of one block.

    Attributes:
        logits: raw confidence logit of each draft.
        probabilities: chance of each draft to survive given that those before it did, calibrated.
    """

    logits: tuple[float, ...]
    probabilities: tuple[float, ...]


def attach(output: Any, confidences: dict[str, DraftConfidence]) -> None:
    """Put confidences by request id on a model runner's output; it travels with it."""
    setattr(output, _ATTRIBUTE, confidences)


def attached(output: Any) -> dict[str, DraftConfidence]:
    """The confidences on an output; empty when no block was drafted."""
    return getattr(output, _ATTRIBUTE, {})
