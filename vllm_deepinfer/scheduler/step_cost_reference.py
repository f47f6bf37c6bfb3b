"""The step-cost model's arithmetic in Python; csrc/planner holds the same in C++.

A bucket is an index into the profiled sizes. Its residual is what its steps took beyond the
profile; how it is estimated is told in ``step_cost.py``.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vllm_deepinfer.scheduler.cost_estimators import (
    KEPT_AFTER_SHIFT,
    ContextSlope,
    SamplerTimes,
    ShiftWatch,
    median,
)

Array = NDArray[np.float64]

REFIT_EVERY = 64


class CostCore:
    """Same constructor, methods and results as ``vllm_deepinfer._planner.CostCore``."""

    def __init__(
        self,
        sizes: Sequence[int],
        base_ms: Sequence[float],
        forward_window: int,
        forward_min_samples: int,
        sampler_window: int,
        sampler_min_samples: int,
        is_local: bool,
        has_context: bool,
        forgets: bool,
        is_padded: bool,
        extrapolates: bool,
    ) -> None:
        self.sizes, self.base_ms = list(sizes), list(base_ms)
        self._window, self._min_samples = forward_window, forward_min_samples
        self._is_local, self._has_context, self._forgets = is_local, has_context, forgets
        self.is_padded, self.extrapolates = is_padded, extrapolates
        self._sampler = SamplerTimes(sampler_window, sampler_min_samples)
        self._samples: deque[tuple[int, int, float, float]] = deque()
        self._first_id = 0
        self.num_observed = self.num_shifts = 0
        count = len(self.sizes)
        self._rates: list[list[float]] = [[] for _ in range(count)]
        self._contexts: list[list[float]] = [[] for _ in range(count)]
        self._watches = [ShiftWatch() for _ in range(count)]
        self._context_slope = ContextSlope()
        self._sizes = np.array(self.sizes, dtype=np.int64)
        self._base_ms = np.array(self.base_ms, dtype=np.float64)
        self._residual_ms = np.zeros(count)
        self.slope_ms = 0.0

    # Prices.

    def bucket_index(self, num_tokens: int) -> int:
        """Index of the smallest size that holds the tokens; of the largest where none does."""
        return min(bisect_left(self.sizes, num_tokens), len(self.sizes) - 1)

    def buckets_of(self, num_tokens: NDArray[np.int64]) -> NDArray[np.int64]:
        """The same for many token counts."""
        return np.minimum(np.searchsorted(self._sizes, num_tokens), len(self.sizes) - 1)

    def is_measured(self, bucket: int) -> bool:
        return len(self._rates[bucket]) >= self._min_samples

    def num_samples(self, bucket: int) -> int:
        return len(self._rates[bucket])

    @property
    def context_slope_ms(self) -> float:
        return self._context_slope.slope_ms

    def sampler_ms(self, num_seqs: int) -> float:
        return self._sampler.ms(num_seqs)

    def forward_ms(self, num_tokens: int, context_tokens: int) -> float:
        return float(self.forward_ms_of(np.array([num_tokens]), context_tokens)[0])

    def forward_ms_of(self, num_tokens: NDArray[np.int64], context_tokens: int) -> Array:
        """The same for many token counts."""
        buckets = self.buckets_of(num_tokens)
        base = self._interpolate(self._base_ms, num_tokens, buckets)
        residual = self._interpolate(self._residual_ms, num_tokens, buckets)
        extra = residual + self._context_slope.slope_ms * context_tokens
        return base + np.where(extra > 0.0, extra, 0.0)

    def _interpolate(self, values: Array, num_tokens: NDArray, buckets: NDArray) -> Array:
        """The bucket's value where steps are padded, else the line between two; past the last size
        the line through the last two goes on, never falling."""
        sizes, last = self._sizes, len(self.sizes) - 1
        result = values[buckets]
        if not self.is_padded:
            between = (buckets > 0) & (num_tokens < sizes[buckets])
            high = buckets[between]
            low = high - 1
            share = (num_tokens[between] - sizes[low]) * (1.0 / (sizes[high] - sizes[low]))
            result[between] = values[low] + share * (values[high] - values[low])
        beyond = num_tokens > sizes[last]
        if last == 0:
            result[beyond] = values[0] * num_tokens[beyond] / sizes[0]
        elif beyond.any():
            rise = max(0.0, values[last] - values[last - 1])
            slope = rise * (1.0 / (sizes[last] - sizes[last - 1]))
            result[beyond] = values[last] + slope * (num_tokens[beyond] - sizes[last])
        return result

    def _base(self, num_tokens: int) -> float:
        tokens = np.array([num_tokens])
        return float(self._interpolate(self._base_ms, tokens, self.buckets_of(tokens))[0])

    # Learning.

    def observe(
        self,
        num_seqs: int,
        num_tokens: int,
        context_tokens: int,
        forward_ms: float,
        sampler_ms: float,
    ) -> None:
        _check(num_tokens, forward_ms, sampler_ms)
        self._sampler.add(num_seqs, sampler_ms)
        if num_tokens > self.sizes[-1] and not self.extrapolates:
            return
        bucket = self.bucket_index(num_tokens)
        shifted = (
            self._forgets
            and self.is_measured(bucket)
            and self._watches[bucket].add(
                forward_ms / self.forward_ms(num_tokens, context_tokens) - 1.0
            )
        )
        self._add(num_tokens, context_tokens, forward_ms)
        if len(self._samples) > self._window:
            self._drop_oldest()
        if shifted:
            self._forget(bucket)
        self.num_observed += 1
        if self._has_context and self.num_observed % REFIT_EVERY == 0:
            self._context_slope.refit()
        self._refresh()

    def _add(self, num_tokens: int, context_tokens: int, forward_ms: float) -> None:
        bucket = self.bucket_index(num_tokens)
        residual = forward_ms - self._base(num_tokens)
        rate = residual / self._slots(num_tokens)
        if self._has_context:
            sample_id = self._first_id + len(self._samples)
            self._context_slope.add(sample_id, bucket, context_tokens, residual)
        self._samples.append((num_tokens, context_tokens, forward_ms, rate))
        insort(self._rates[bucket], rate)
        insort(self._contexts[bucket], float(context_tokens))

    def _slots(self, num_tokens: int) -> int:
        """Token slots that such a step computes, padding included."""
        if self.is_padded and num_tokens <= self.sizes[-1]:
            return self.sizes[self.bucket_index(num_tokens)]
        return num_tokens

    def _drop_oldest(self) -> None:
        num_tokens, context_tokens, _, rate = self._samples.popleft()
        bucket = self.bucket_index(num_tokens)
        for ordered, value in (
            (self._rates[bucket], rate),
            (self._contexts[bucket], float(context_tokens)),
        ):
            ordered.pop(bisect_left(ordered, value))
        if self._has_context:
            self._context_slope.remove(self._first_id, bucket, context_tokens)
        self._first_id += 1

    def _forget(self, bucket: int) -> None:
        """Drop all that is older than the bucket's newest samples: they tell of another machine."""
        own = [i for i, s in enumerate(self._samples) if self.bucket_index(s[0]) == bucket]
        for _ in range(own[-KEPT_AFTER_SHIFT:][0]):
            self._drop_oldest()
        self._watches = [ShiftWatch() for _ in self.sizes]
        self.num_shifts += 1

    def _refresh(self) -> None:
        """Recompute slope and residuals from the buckets that have enough samples."""
        context_slope = self._context_slope.slope_ms
        measured = [b for b in range(len(self.sizes)) if self.is_measured(b)]
        rates = {
            b: median(self._rates[b]) - context_slope * median(self._contexts[b]) / self.sizes[b]
            for b in measured
        }
        self.slope_ms = max(0.0, median(sorted(rates.values()))) if rates else 0.0
        if not self._is_local:
            self._residual_ms = self.slope_ms * self._sizes
        elif measured:
            own = {b: rates[b] * self.sizes[b] for b in measured}
            local = [self._local(b, own, measured) for b in range(len(self.sizes))]
            self._residual_ms = np.array(local)
        else:
            self._residual_ms = np.zeros(len(self.sizes))

    def _local(self, bucket: int, own: dict[int, float], measured: list[int]) -> float:
        """A bucket's own residual, or what the measured ones around it say of it."""
        if bucket in own:
            return own[bucket]
        place = bisect_left(measured, bucket)
        if 0 < place < len(measured):
            low, high = measured[place - 1], measured[place]
            share = (self.sizes[bucket] - self.sizes[low]) / (self.sizes[high] - self.sizes[low])
            return own[low] + share * (own[high] - own[low])
        edge = measured[0] if place == 0 else measured[-1]
        carried = own[edge] * self.base_ms[bucket] / self.base_ms[edge]
        return carried if place == 0 else min(carried, self.slope_ms * self.sizes[bucket])

    # State.

    def state(self) -> dict[str, Any]:
        """Everything learned, as lists of numbers."""
        return {
            "num_observed": self.num_observed,
            "num_shifts": self.num_shifts,
            "context_slope_ms": self._context_slope.slope_ms,
            "samples": [list(sample[:3]) for sample in self._samples],
            "sampler": [[n, values] for n, values in self._sampler.samples()],
            "errors": [[list(w.past), list(w.recent)] for w in self._watches],
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Take over what ``state`` gave; on a new core only."""
        for _, values in state["sampler"]:
            _check(1, *values)
        self._sampler.restore(state["sampler"])
        self._context_slope.slope_ms = state["context_slope_ms"]
        for num_tokens, context_tokens, forward_ms in state["samples"]:
            _check(num_tokens, forward_ms)
            self._add(num_tokens, context_tokens, forward_ms)
        for watch, (past, recent) in zip(self._watches, state["errors"], strict=True):
            _check(1, *past, *recent)
            watch.restore(past, recent)
        self.num_observed, self.num_shifts = state["num_observed"], state["num_shifts"]
        self._refresh()


def _check(num_tokens: int, *times_ms: float) -> None:
    if not all(map(math.isfinite, times_ms)):
        raise ValueError("a time is not finite")
    if num_tokens < 1:
        raise ValueError("a step has no tokens")
