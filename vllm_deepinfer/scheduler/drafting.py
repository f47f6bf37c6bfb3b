"""Bookkeeping of drafts: what was offered, what survived, what the drafter had said."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from vllm_deepinfer.log import get_logger
from vllm_deepinfer.metrics.shared_counters import SharedCounters
from vllm_deepinfer.scheduler.acceptance import AcceptanceWatch
from vllm_deepinfer.scheduler.confidences import DraftConfidence

logger = get_logger(__name__)

OFFERED, ACCEPTED, CONFIDENCE = "offered", "accepted", "confidence"


def counter_names(num_drafts: int) -> list[str]:
    """Per-position counters; ``confidence`` sums the probabilities of offered drafts."""
    return [
        f"{kind}_{position}"
        for kind in (OFFERED, ACCEPTED, CONFIDENCE)
        for position in range(num_drafts)
    ]


class DraftLedger:
    """Keeps each request's newest confidences and settles them when its drafts were verified.

    Args:
        counters: named by ``counter_names``.
        records: file that receives one line per settled block, for ``vllm-deepinfer calibrate``.
    """

    def __init__(self, counters: SharedCounters, records: Path | None) -> None:
        self.counters = counters
        self._watch = AcceptanceWatch()
        self._confidences: dict[str, DraftConfidence] = {}
        self._records = None if records is None else records.open("a", encoding="utf-8")

    def confidence(self, request_id: str) -> DraftConfidence | None:
        """What the drafter said of the request's block that is not verified yet."""
        return self._confidences.get(request_id)

    def settle(self, request_id: str, offered: int, accepted: int) -> None:
        """Count one verified block: ``accepted`` of the first ``offered`` drafts survived."""
        confidence = self._confidences.pop(request_id, None)
        for position in range(offered):
            self.counters.add(f"{OFFERED}_{position}")
            if position < accepted:
                self.counters.add(f"{ACCEPTED}_{position}")
            if confidence is not None:
                probability = confidence.probabilities[position]
                self.counters.add(f"{CONFIDENCE}_{position}", probability)
        if confidence is not None and self._records is not None:
            self._write(request_id, confidence, offered, accepted)
        if collapse := self._watch.observe(offered, accepted):
            logger.warning("%s", collapse)

    def receive(self, confidences: dict[str, DraftConfidence]) -> None:
        """Take the confidences of newly drafted blocks."""
        self._confidences.update(confidences)

    def forget(self, request_ids: Iterable[str]) -> None:
        """Drop requests that ended; their last block will not be verified."""
        for request_id in request_ids:
            self._confidences.pop(request_id, None)

    def close(self) -> None:
        if self._records is not None:
            self._records.close()
        self.counters.remove()

    def _write(self, request_id: str, said: DraftConfidence, offered: int, accepted: int) -> None:
        record: dict[str, Any] = {
            "confidence_logits": list(said.logits),
            "offered": offered,
            "accepted": accepted,
            "request_id": request_id,
        }
        assert self._records is not None
        self._records.write(json.dumps(record) + "\n")
        self._records.flush()
