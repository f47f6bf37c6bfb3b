"""Times of forward passes: one profile at start-up, and every step after it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

PROFILE_BUDGET_S = 3.0
"""Larger sizes than fit in this are not timed; their cost is extrapolated."""
_TIMED_RUNS = 5


class ForwardClock:
    """Adds up the time of the target's forward passes, by hooks on the module.

    They run on a CPU, where a pass has ended when it returns.
    """

    def __init__(self, model: Any) -> None:
        self._spent_s = self._begin_s = 0.0
        model.register_forward_pre_hook(self._begin)
        model.register_forward_hook(self._end)

    def _begin(self, *_: Any) -> None:
        self._begin_s = time.perf_counter()

    def _end(self, *_: Any) -> None:
        self._spent_s += time.perf_counter() - self._begin_s

    def take_ms(self) -> float:
        """Milliseconds since the last call."""
        spent_s, self._spent_s = self._spent_s, 0.0
        return 1e3 * spent_s


def profiled_sizes(largest: int) -> list[int]:
    """Tokens to time: powers of two up to ``largest``, and that itself."""
    sizes = [1 << power for power in range(largest.bit_length())]
    return sizes if sizes[-1] == largest else [*sizes, largest]


def profile_forward(
    run: Callable[[int], Any],
    clock: ForwardClock,
    sizes: list[int],
    budget_s: float,
    any_rank: Callable[[bool], bool] = bool,
) -> tuple[tuple[int, float], ...]:
    """``(tokens, ms)`` of each size: one run to warm up, the mean of five without both extremes.

    Sizes stop where the budget is spent; at least the first is timed.

    Args:
        run: computes a batch of so many tokens, one a request, without context.
        sizes: ascending.
        any_rank: whether any rank says yes; ranks must stop together, since each run takes all.
    """
    found: list[tuple[int, float]] = []
    begin_s = time.perf_counter()
    for size in sizes:
        run(size)
        one_ms = clock.take_ms()
        left_s = budget_s - (time.perf_counter() - begin_s)
        if any_rank(bool(found) and left_s < _TIMED_RUNS * one_ms / 1e3):
            break
        found.append((size, _trimmed_mean_ms(run, clock, size)))
    return tuple(found)


def _trimmed_mean_ms(run: Callable[[int], Any], clock: ForwardClock, size: int) -> float:
    times_ms = []
    for _ in range(_TIMED_RUNS):
        run(size)
        times_ms.append(clock.take_ms())
    kept = sorted(times_ms)[1:-1]
    return sum(kept) / len(kept)
