"""Bookkeeping of drafts: what was offered, what survived, what the drafter had said."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vllm_deepinfer.log import get_logger
from vllm_deepinfer.metrics.catalogue import ACCEPTED, CONFIDENCE, OFFERED, counter
from vllm_deepinfer.metrics.shared_counters import SharedCounters
from vllm_deepinfer.scheduler import request_loops
from vllm_deepinfer.scheduler.acceptance import AcceptanceWatch
from vllm_deepinfer.scheduler.draft_table import DraftTable
from vllm_deepinfer.scheduler.mean_survival import MeanSurvival
from vllm_deepinfer.scheduler.recalibration import Recalibration
from vllm_deepinfer.scheduler.step_report import BlockConfidences

logger = get_logger(__name__)

LEARNED_STEPS = 4


class DraftLedger:
    """Settles verified blocks with what the drafter had said of them.

    Args:
        table: the confidences.
        counters: with those of ``draft_families``.
        records: file that receives one line per settled block, for ``vllm-deepinfer calibrate``.

    Attributes:
        num_offered, num_accepted: float64 ``[K]``, drafts by position since the start.
        mean_survival: of all settled blocks.
        recalibration: corrects what drafters say where one is set; the counters and records keep
            what they said.
    """

    def __init__(self, table: DraftTable, counters: SharedCounters, records: Path | None) -> None:
        self.table, self.counters = table, counters
        count = table.num_drafts
        self.num_offered = counters.slice(counter(OFFERED, 0), count)
        self.num_accepted = counters.slice(counter(ACCEPTED, 0), count)
        self._confidence = counters.slice(counter(CONFIDENCE, 0), count)
        self.mean_survival = MeanSurvival(count)
        self.recalibration: Recalibration | None = None
        self._num_settled_steps = 0
        self._settle = request_loops.backend().settle
        self._watch = AcceptanceWatch()
        self._records = None if records is None else records.open("a", encoding="utf-8")

    def settle(self, request_ids: list[str], offered: list[int], accepted: list[int]) -> None:
        """Count the blocks a step verified: of the first ``offered[i]`` drafts of request i's
        block, ``accepted[i]`` survived.

        Raises:
            ValueError: more survived than were offered, or more were offered than there are.
        """
        if not request_ids:
            return
        if self._records is not None:
            self._write(request_ids, offered, accepted)
        if self.recalibration is not None:
            self._recalibrate(self.recalibration, request_ids, offered, accepted)
        # Only first drafts are watched: their share does not depend on how many more were verified.
        first_drafts = self._settle(
            request_ids,
            offered,
            accepted,
            self.table.row_by_request,
            self.table.probabilities,
            self.table.is_open,
            self.num_offered,
            self.num_accepted,
            self._confidence,
            self.mean_survival.reached,
            self.mean_survival.survived,
        )
        if collapse := self._watch.observe(*first_drafts):
            logger.warning("%s", collapse)

    def receive(self, blocks: BlockConfidences, is_kept: Sequence[Any]) -> None:
        """Take newly drafted blocks, as ``DraftTable.receive`` does."""
        recalibration = self.recalibration
        corrected = None if recalibration is None else recalibration.corrected
        self.table.receive(blocks, is_kept, corrected)

    def _recalibrate(
        self,
        recalibration: Recalibration,
        request_ids: list[str],
        offered: list[int],
        accepted: list[int],
    ) -> None:
        """Learn from every fourth step: enough to follow the texts, and out of the others' way."""
        self._num_settled_steps += 1
        if self._num_settled_steps % LEARNED_STEPS:
            return
        rows = self.table.rows(request_ids)
        known = self.table.is_open[rows]
        said = self.table.probabilities[rows[known]]
        recalibration.settle(said, np.asarray(offered)[known], np.asarray(accepted)[known])

    def close(self) -> None:
        if self._records is not None:
            self._records.close()

    def _write(
        self,
        request_ids: list[str],
        offered: list[int],
        accepted: list[int],
    ) -> None:
        assert self._records is not None
        rows = self.table.rows(request_ids)
        for index in np.flatnonzero(self.table.is_open[rows]):
            record: dict[str, Any] = {
                "confidence_logits": self.table.logits[rows[index]].tolist(),
                "offered": offered[index],
                "accepted": accepted[index],
                "request_id": request_ids[index],
            }
            self._records.write(json.dumps(record) + "\n")
        self._records.flush()
