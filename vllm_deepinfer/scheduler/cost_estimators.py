"""Estimators of step times: what the C++ planner computes, in Python.

This is the reference: it runs where the extension was not built, and the tests hold the extension
to the same bits. Every estimate is an order statistic of recent samples, so one slow step moves
nothing. Inserting and removing a sample takes a binary search.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable

CONTEXT_BIN_SAMPLES = 32
CONTEXT_BIN_MIN_SAMPLES = 8
RECENT_ERRORS = 24
KEPT_AFTER_SHIFT = 12
PAST_ERRORS = 256
MIN_PAST_ERRORS = 96
SHIFT_TAIL = 20  # one in so many past errors lies beyond the band, at either end
MIN_SHIFT = 0.03


def median(ordered: list[float]) -> float:
    """Median of an ascending, non-empty list; the mean of the middle two where they are two."""
    half = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[half]
    return (ordered[half - 1] + ordered[half]) / 2


class RollingMedian:
    """Median of the newest ``window`` values once there are ``min_samples``."""

    def __init__(self, window: int, min_samples: int) -> None:
        self._window, self._min_samples = window, min_samples
        self.values: deque[float] = deque()
        self._ordered: list[float] = []

    def add(self, value: float) -> None:
        self.values.append(value)
        insort(self._ordered, value)
        if len(self.values) > self._window:
            self._ordered.pop(bisect_left(self._ordered, self.values.popleft()))

    def median(self) -> float | None:
        return median(self._ordered) if len(self.values) >= self._min_samples else None


class SamplerTimes:
    """Sampling and drafting time by number of sequences; by the newest steps of any number else."""

    def __init__(self, window: int, min_samples: int) -> None:
        self._new = lambda: RollingMedian(window, min_samples)
        self._overall = self._new()
        self._by_num_seqs: dict[int, RollingMedian] = {}

    def add(self, num_seqs: int, ms: float) -> None:
        self._overall.add(ms)
        self._by_num_seqs.setdefault(num_seqs, self._new()).add(ms)

    def ms(self, num_seqs: int) -> float:
        """0 when nothing was measured."""
        own = self._by_num_seqs.get(num_seqs)
        for estimate in (own.median() if own else None, self._overall.median()):
            if estimate is not None:
                return estimate
        return 0.0

    def samples(self) -> list[tuple[int, list[float]]]:
        """By number of sequences, ascending; 0 stands for the newest steps of any number."""
        known = {0: self._overall, **self._by_num_seqs}
        return [(num_seqs, list(known[num_seqs].values)) for num_seqs in sorted(known)]

    def restore(self, samples: Iterable[tuple[int, list[float]]]) -> None:
        for num_seqs, values in samples:
            target = self._overall
            if num_seqs:
                target = self._by_num_seqs.setdefault(num_seqs, self._new())
            for value in values:
                target.add(value)


class ContextSlope:
    """Milliseconds per context token, from steps of one bucket at different context lengths.

    Samples of a bucket are binned by octave of context. Neighbouring bins give a slope between
    their medians (Theil-Sen over bins), weighted by the context between them; the weighted median
    over all buckets counts, never below 0.
    """

    def __init__(self) -> None:
        self.slope_ms = 0.0
        self._bins: dict[tuple[int, int], deque[tuple[int, float, int]]] = {}
        self._medians: dict[tuple[int, int], tuple[float, float]] = {}

    def add(self, sample_id: int, bucket: int, context_tokens: int, residual_ms: float) -> None:
        key = (bucket, context_tokens.bit_length())
        samples = self._bins.setdefault(key, deque())
        samples.append((sample_id, residual_ms, context_tokens))
        if len(samples) > CONTEXT_BIN_SAMPLES:
            samples.popleft()
        self._medians.pop(key, None)

    def remove(self, sample_id: int, bucket: int, context_tokens: int) -> None:
        """Drop the oldest sample of its bin, unless newer ones displaced it already."""
        key = (bucket, context_tokens.bit_length())
        samples = self._bins.get(key)
        if samples and samples[0][0] == sample_id:
            samples.popleft()
            self._medians.pop(key, None)

    def refit(self) -> None:
        """Keeps the slope it had where no bucket saw two context lengths."""
        slopes = self._slopes()
        total = sum(weight for _, weight in slopes)
        passed = 0.0
        for slope, weight in sorted(slopes):
            passed += weight
            if 2 * passed >= total:
                self.slope_ms = max(0.0, slope)
                return

    def _slopes(self) -> list[tuple[float, float]]:
        slopes, before = [], None
        for key in sorted(self._bins):
            if len(self._bins[key]) < CONTEXT_BIN_MIN_SAMPLES:
                continue
            residual_ms, context = self._bin_medians(key)
            if before is not None and before[0] == key[0] and context > before[2]:
                distance = context - before[2]
                slopes.append(((residual_ms - before[1]) / distance, distance))
            before = (key[0], residual_ms, context)
        return slopes

    def _bin_medians(self, key: tuple[int, int]) -> tuple[float, float]:
        if key not in self._medians:
            _, residuals, contexts = zip(*self._bins[key], strict=True)
            self._medians[key] = (
                median(sorted(residuals)),
                median(sorted(map(float, contexts))),
            )
        return self._medians[key]


class ShiftWatch:
    """Tells when a bucket's newest errors left the band of those before them.

    Errors are relative: measured over predicted time, less 1. The newest 24 are compared with the
    up to 256 before them; they have left when their median lies outside the past's 5 % to 95 % and
    at least 3 % from its median. Independent errors of one law hardly ever do: fewer
    than 1 in 100,000 of their windows.
    """

    def __init__(self) -> None:
        self.recent: deque[float] = deque()
        self.past: deque[float] = deque()
        self._ordered: list[float] = []

    def add(self, error: float) -> bool:
        """Returns whether the errors have shifted."""
        self.recent.append(error)
        if len(self.recent) > RECENT_ERRORS:
            self._remember(self.recent.popleft())
        if len(self.past) < MIN_PAST_ERRORS:
            return False
        now, then = median(sorted(self.recent)), median(self._ordered)
        tail = len(self._ordered) // SHIFT_TAIL
        inside = self._ordered[tail] <= now <= self._ordered[-1 - tail]
        return not inside and abs(now - then) >= MIN_SHIFT

    def restore(self, past: Iterable[float], recent: Iterable[float]) -> None:
        for error in past:
            self._remember(error)
        self.recent.extend(recent)

    def _remember(self, error: float) -> None:
        self.past.append(error)
        insort(self._ordered, error)
        if len(self.past) > PAST_ERRORS:
            self._ordered.pop(bisect_left(self._ordered, self.past.popleft()))
