"""The planner's arithmetic in Python; csrc/planner holds the same in C++.

Chances are rounded to multiples of 2^-22, nearest even, so that their sums are exact in any order
and both give the same plans to the bit.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vllm_deepinfer.scheduler.step_cost_reference import CostCore

ONE = 1 << 22
ARGMAX, STATIC, EXPLORE = range(3)


class Choice(NamedTuple):
    """A number of verification rows and what it promises."""

    num_rows: int
    expected_tokens: float
    step_ms: float
    score: float  # expected tokens per millisecond


class PlannerCore:
    """Same constructor, method and results as ``vllm_deepinfer._planner.PlannerCore``."""

    def __init__(
        self,
        cost: CostCore,
        max_drafts: int,
        min_benefit: float,
        static_benefit: float,
        explore_every: int,
        explore_loss: float,
        ties_by_position: bool,
    ) -> None:
        self._cost, self._max_drafts = cost, max_drafts
        self._min_benefit, self._static_benefit = min_benefit, static_benefit
        self._explore_every, self._explore_loss = explore_every, explore_loss
        self._ties_by_position = ties_by_position
        self._num_plans = 0
        self._static_length = -1
        self._ranks = False

    def plan(
        self,
        budget_rates: NDArray,
        ranking_rates: NDArray,
        limits: NDArray[np.int32],
        num_drafts: NDArray[np.int32],
        context_tokens: int,
        other_tokens: int,
    ) -> tuple[float, float, int, int]:
        """Fills ``num_drafts``; returns expected tokens, step time, rows and kind."""
        n = len(limits)
        shape = (n, self._max_drafts)
        _check(budget_rates, ranking_rates, limits, shape, context_tokens, other_tokens)
        if n == 0:
            return 0.0, 0.0, 0, ARGMAX
        budget, ranking = quantised(budget_rates, "budget"), quantised(ranking_rates, "ranking")
        price = _Price(self._cost, n, context_tokens, other_tokens)
        allowed = np.arange(self._max_drafts) < limits[:, None]
        buckets = price.best_of_buckets(np.sort(budget[allowed])[::-1])
        best_bucket = max(buckets, key=lambda b: (buckets[b].score, -b))
        choice, kind = buckets[best_bucket], ARGMAX
        self._num_plans += 1
        if self._min_benefit > 0.0:
            static = self._static(price, budget, allowed)
            if not self._gains(choice, static):
                choice, kind = static, STATIC
        explored = self._explored(buckets, choice, other_tokens)
        if explored is not None:
            choice, kind = explored, EXPLORE
        if kind == STATIC:
            num_drafts[:] = np.minimum(limits, self._static_length)
        else:
            num_drafts[:] = self._allocate(ranking, allowed, choice.num_rows - n)
        return choice.expected_tokens, choice.step_ms, choice.num_rows, kind

    def _static(self, price: _Price, budget: NDArray, allowed: NDArray) -> Choice:
        """The choice of the static length, which changes only for a gain."""
        columns = np.cumsum(np.where(allowed, budget, 0).sum(axis=0))
        rows = np.cumsum(allowed.sum(axis=0))
        lengths = [price.choice(0, 0)]
        for total, count in zip(columns, rows, strict=True):
            lengths.append(price.choice(int(count), int(total)))
        best = max(range(len(lengths)), key=lambda k: (lengths[k].score, -k))
        held = self._static_length
        if held < 0 or lengths[best].score >= lengths[held].score * (1.0 + self._static_benefit):
            self._static_length = best
        return lengths[self._static_length]

    def _gains(self, ranked: Choice, static: Choice) -> bool:
        needed = self._min_benefit / 2.0 if self._ranks else self._min_benefit
        self._ranks = ranked.score >= static.score * (1.0 + needed)
        return self._ranks

    def _explored(
        self, buckets: dict[int, Choice], choice: Choice, other_tokens: int
    ) -> Choice | None:
        """The best unmeasured bucket, when it is time to try one and it loses little."""
        if not self._explore_every or self._num_plans % self._explore_every:
            return None
        if not self._cost.is_measured(self._cost.bucket_index(choice.num_rows + other_tokens)):
            return None
        unmeasured = [b for b in buckets if not self._cost.is_measured(b)]
        if not unmeasured:
            return None
        best = buckets[max(unmeasured, key=lambda b: (buckets[b].score, -b))]
        return best if best.score >= choice.score * (1.0 - self._explore_loss) else None

    def _allocate(self, ranking: NDArray, allowed: NDArray, num_winners: int) -> NDArray:
        """Drafts of each sequence among the ``num_winners`` likeliest."""
        sequence, position = np.nonzero(allowed)
        ties = (sequence, position) if self._ties_by_position else (position, sequence)
        order = np.lexsort((*ties, -ranking[allowed]))
        return np.bincount(sequence[order[:num_winners]], minlength=len(allowed))


class _Price:
    """Prices of a step by its verification rows."""

    def __init__(self, cost: CostCore, n: int, context_tokens: int, other_tokens: int) -> None:
        self._cost, self._n, self._other_tokens = cost, n, other_tokens
        self._context_tokens = context_tokens
        self._sampler_ms = cost.sampler_ms(n)
        if not self.is_priced(n):
            raise ValueError(
                f"a step of {n} sequences and {other_tokens} other tokens has no price: the "
                f"largest profiled bucket is {cost.sizes[-1]}"
            )

    def is_priced(self, num_rows: int) -> bool:
        return self._cost.extrapolates or num_rows + self._other_tokens <= self._cost.sizes[-1]

    def choice(self, num_drafts: int, gain: int) -> Choice:
        """``gain`` in units of 2^-22 tokens; a step without a price has score -1."""
        num_rows = self._n + num_drafts
        expected = float(self._n * ONE + gain) / ONE
        if not self.is_priced(num_rows):
            return Choice(num_rows, expected, 0.0, -1.0)
        tokens = num_rows + self._other_tokens
        step_ms = self._cost.forward_ms(tokens, self._context_tokens) + self._sampler_ms
        return Choice(num_rows, expected, step_ms, expected / step_ms)

    def best_of_buckets(self, gains: NDArray) -> dict[int, Choice]:
        """By bucket the best choice of those that lie in it; ties keep the fewer rows.

        Args:
            gains: chances of the drafts, descending, in units of 2^-22.
        """
        rows = self._n + np.arange(len(gains) + 1)
        tokens = rows + self._other_tokens
        if not self._cost.extrapolates:
            tokens = tokens[tokens <= self._cost.sizes[-1]]
        totals = np.concatenate(([0], np.cumsum(gains)))[: len(tokens)]
        expected = (self._n * ONE + totals).astype(np.float64) / ONE
        step_ms = self._cost.forward_ms_of(tokens, self._context_tokens) + self._sampler_ms
        scores = expected / step_ms
        buckets = self._cost.buckets_of(tokens)
        begins = np.flatnonzero(np.diff(buckets, prepend=-1))
        best: dict[int, Choice] = {}
        for begin, end in zip(begins, [*begins[1:], len(tokens)], strict=True):
            i = begin + int(scores[begin:end].argmax())
            best[int(buckets[begin])] = Choice(
                int(rows[i]), float(expected[i]), float(step_ms[i]), float(scores[i])
            )
        return best


def quantised(rates: NDArray, name: str) -> NDArray[np.int64]:
    """Rates in units of 2^-22.

    Raises:
        ValueError: a rate is not from 0 to 1 or rises along its row.
    """
    wrong = ~((rates >= 0) & (rates <= 1))
    if wrong.any():
        i, j = np.argwhere(wrong)[0]
        raise ValueError(
            f"{name} rate of sequence {i}, draft {j} is {rates[i, j]:.9g}; "
            "a chance must be from 0 to 1"
        )
    units = np.rint(rates.astype(np.float64) * ONE).astype(np.int64)
    rising = np.argwhere(np.diff(units, axis=1) > 0)
    if len(rising):
        i, j = rising[0]
        raise ValueError(
            f"{name} rate of sequence {i} rises at draft {j + 1}; chances to survive are "
            "cumulative, so they fall along a row"
        )
    return units


def _check(
    budget: NDArray,
    ranking: NDArray,
    limits: NDArray,
    shape: tuple[int, int],
    context_tokens: int,
    other_tokens: int,
) -> None:
    for name, rates in (("budget", budget), ("ranking", ranking)):
        if rates.shape != shape or rates.dtype.char not in "fd":
            raise ValueError(
                f"{name} rates are {rates.dtype} {rates.shape}; expected float32 or float64 {shape}"
            )
    for i in np.flatnonzero((limits < 0) | (limits > shape[1]))[:1]:
        raise ValueError(f"limit of sequence {i} is {limits[i]}; it must be from 0 to {shape[1]}")
    if context_tokens < 0 or other_tokens < 0:
        raise ValueError(
            f"context_tokens is {context_tokens} and other_tokens {other_tokens}; both must be >= 0"
        )
