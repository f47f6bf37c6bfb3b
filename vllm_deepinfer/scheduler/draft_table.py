"""What drafters said of each running request's last two blocks, as arrays.

Rows are handed out by request id, so that the scheduler's hot path reads whole columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from vllm_deepinfer.scheduler import request_loops
from vllm_deepinfer.scheduler.step_report import BlockConfidences

UNKNOWN = 0
"""Row of requests that never drafted; nothing is written to it."""
_FIRST_ROWS = 64


class DraftTable:
    """Confidences by request.

    Attributes:
        row_by_request: row of each request that has drafted.
        newest_rates, previous_rates: float32 ``[rows, K]``, chance of each draft to survive, those
            before it included, of the last two blocks.
        num_rounds: int64 ``[rows]``, blocks seen, at most two.
        logits, probabilities: float32 ``[rows, K]`` of the newest block.
        is_open: bool ``[rows]``, whether the newest block is not verified yet.

    Args:
        num_drafts: K.
    """

    def __init__(self, num_drafts: int) -> None:
        self.num_drafts = num_drafts
        self.row_by_request: dict[str, int] = {}
        self._receive = request_loops.backend().receive
        self._allocate(_FIRST_ROWS)

    def _allocate(self, num_rows: int) -> None:
        shape = (num_rows, self.num_drafts)
        self.newest_rates = np.zeros(shape, dtype=np.float32)
        self.previous_rates = np.zeros(shape, dtype=np.float32)
        self.logits = np.zeros(shape, dtype=np.float32)
        self.probabilities = np.zeros(shape, dtype=np.float32)
        self.num_rounds = np.zeros(num_rows, dtype=np.int64)
        self.is_open = np.zeros(num_rows, dtype=bool)
        self._free = list(range(num_rows - 1, UNKNOWN, -1))

    def rows(self, request_ids: Iterable[str]) -> np.ndarray:
        """Row of each request, int64 ``[n]``; ``UNKNOWN`` for one that has not drafted."""
        find = self.row_by_request.get
        return np.array([find(name, UNKNOWN) for name in request_ids], dtype=np.int64)

    def receive(
        self,
        blocks: BlockConfidences,
        is_kept: Sequence[Any],
        corrected: np.ndarray | None = None,
    ) -> None:
        """Take newly drafted blocks; those of requests not kept (unfinished prompts) are noise.

        Args:
            is_kept: one of each block, true for those to take.
            corrected: of the ``Recalibration`` that rates go by, if any.
        """
        while len(self._free) < len(blocks.request_ids):
            self._grow()
        self._receive(
            blocks.request_ids,
            is_kept,
            blocks.logits,
            blocks.probabilities,
            corrected,
            self.row_by_request,
            self._free,
            self.newest_rates,
            self.previous_rates,
            self.logits,
            self.probabilities,
            self.num_rounds,
            self.is_open,
        )

    def forget(self, request_ids: Iterable[str]) -> None:
        """Drop requests that ended."""
        for name in request_ids:
            row = self.row_by_request.pop(name, None)
            if row is not None:
                self.num_rounds[row], self.is_open[row] = 0, False
                self._free.append(row)

    def _grow(self) -> None:
        old = {name: value for name, value in vars(self).items() if isinstance(value, np.ndarray)}
        used, free = len(self.num_rounds), self._free
        self._allocate(2 * used)
        self._free = [row for row in self._free if row >= used] + free
        for name, values in old.items():
            getattr(self, name)[:used] = values
