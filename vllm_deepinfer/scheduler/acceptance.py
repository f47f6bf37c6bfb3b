"""Watching how many drafts survive: a pure policy over counts.

A drafter that no longer fits its target, or whose context is corrupted under load, does not change
the text; it only stops paying for itself. What tells is a fall against the process's own past.
"""

from __future__ import annotations

from dataclasses import dataclass

RECENT_DRAFTS = 512
BASELINE_DRAFTS = 4096
COLLAPSE_RATIO = 0.5


@dataclass(frozen=True)
class Collapse:
    """Acceptance fell: shares of offered drafts that survived, then and now."""

    baseline: float
    recent: float
    num_drafts: int

    def __str__(self) -> str:
        return (
            f"Draft acceptance fell from {self.baseline:.1%} to {self.recent:.1%} of offered "
            f"drafts over the last {self.num_drafts}. The text is unaffected, the speed is: check "
            "that the drafter belongs to this checkpoint, or serve without --speculative-config."
        )


class AcceptanceWatch:
    """Compares windows of ``RECENT_DRAFTS`` offered drafts with all that came before them."""

    def __init__(self) -> None:
        self._offered = self._accepted = 0
        self._past_offered = self._past_accepted = 0
        self._is_low = False

    def observe(self, offered: int, accepted: int) -> Collapse | None:
        """Count one block; returns a collapse once when a window first falls below half.

        Args:
            offered: drafts verified.
            accepted: drafts that survived, at most ``offered``.
        """
        self._offered += offered
        self._accepted += accepted
        if self._offered < RECENT_DRAFTS:
            return None
        return self._close_window()

    def _close_window(self) -> Collapse | None:
        offered, accepted = self._offered, self._accepted
        self._offered = self._accepted = 0
        recent = accepted / offered
        if self._past_offered < BASELINE_DRAFTS:
            self._remember(offered, accepted)
            return None
        baseline = self._past_accepted / self._past_offered
        was_low, self._is_low = self._is_low, recent < COLLAPSE_RATIO * baseline
        if not self._is_low:
            self._remember(offered, accepted)
        elif not was_low:
            return Collapse(baseline, recent, offered)
        return None

    def _remember(self, offered: int, accepted: int) -> None:
        self._past_offered += offered
        self._past_accepted += accepted
