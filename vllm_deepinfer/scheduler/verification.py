"""How many drafts of each sequence a step verifies.

A plan maximises expected tokens per millisecond. Every sequence yields one token, and each verified
draft adds its chance to survive; what a step costs is a staircase of its tokens, so that the
objective has many peaks and all are compared. Within a budget of tokens the likeliest drafts win.

The budget comes from settled rounds, the ranking from the newest (``survival.py`` says why). So
that errors of the model do not make plans worse than a fixed length, the plan is that of the best
*static* length, the same for every sequence, unless ranking gains at least ``min_benefit``; and the
static length itself only changes for a gain. Now and then a bucket that was never measured is
tried, where little can be lost.

One plan holds for a step: the scheduler makes it, and every worker of its rank gets it with the
step's batch. Nobody plans again from confidences that may differ in the last bit.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vllm_deepinfer.scheduler.step_cost import StepCost

KINDS = ("argmax", "static", "explore")
ALL = "all"
TIES = ("position", "sequence")


class Plan(NamedTuple):
    """What a step verifies.

    Attributes:
        num_drafts: drafts to verify of each sequence, the first ones, int32 [n].
        expected_tokens: tokens the step is expected to yield.
        step_ms: what it is expected to take; NaN where nothing was profiled.
        num_tokens: verification rows: one for each sequence and one for each draft.
        kind: "argmax", "static", "explore", or "all" where nothing was profiled.
    """

    num_drafts: NDArray[np.int32]
    expected_tokens: float
    step_ms: float
    num_tokens: int
    kind: str


@dataclass(frozen=True)
class PlannerSettings:
    """When a plan departs from a fixed length.

    Attributes:
        min_benefit: least predicted gain over the static length, as a share, to begin with ranking;
            half of it keeps it going. 0 plans by the global maximum alone.
        static_benefit: least predicted gain to change the static length.
        explore_every: plans between two tries of an unmeasured bucket; 0 for never.
        explore_loss: most that a try may be predicted to lose, as a share.
        ties: which of equally likely drafts goes first: the lower "position" and then the lower
            index, or the lower index ("sequence") and then the lower position.
    """

    min_benefit: float = 0.01
    static_benefit: float = 0.005
    explore_every: int = 16
    explore_loss: float = 0.03
    ties: str = "position"

    def __post_init__(self) -> None:
        for name in ("min_benefit", "static_benefit", "explore_loss"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be from 0 to below 1")
        if self.explore_every < 0:
            raise ValueError(f"explore_every is {self.explore_every}; it must be >= 0, 0 for never")
        if self.ties not in TIES:
            raise ValueError(f"ties is {self.ties!r}; allowed: {TIES}")

    @classmethod
    def compatible(cls) -> PlannerSettings:
        """The rules of DeepInfer 0.1.0."""
        return cls(min_benefit=0.0, explore_every=0, ties="sequence")


class VerificationPlanner:
    """Plans step after step; it remembers the static length and when it last explored.

    Args:
        cost: prices of steps; without any, all drafts are verified.
        max_drafts: drafts of a sequence, K.
        settings: when to depart from a fixed length.
    """

    def __init__(
        self,
        cost: StepCost | None,
        max_drafts: int,
        settings: PlannerSettings = PlannerSettings(),  # noqa: B008 - frozen
    ) -> None:
        if max_drafts < 1:
            raise ValueError(f"max_drafts is {max_drafts}; it must be >= 1")
        self.cost, self.max_drafts, self.settings = cost, max_drafts, settings
        self._plan = None
        if cost is not None:
            values = asdict(settings) | {"ties": settings.ties == "position"}
            self._plan = cost.planner_core(cost.core, max_drafts, *values.values()).plan

    def plan(
        self,
        budget_rates: ArrayLike,
        ranking_rates: ArrayLike,
        limits: ArrayLike,
        context_tokens: int = 0,
        other_tokens: int = 0,
    ) -> Plan:
        """Plan a step of n sequences.

        Args:
            budget_rates: chances of survival that decide how many drafts are verified, cumulative
                along a row, float32 or float64 [n, K]; from a settled round.
            ranking_rates: those that decide which ones, same shape and type.
            limits: most drafts each sequence may verify (its drafts, what is left of its length
                limits), int32 [n], from 0 to K.
            context_tokens: tokens in the KV cache of all sequences of the step.
            other_tokens: tokens of the step that are no verification rows, such as prefill chunks.

        Raises:
            ValueError: a chance is not from 0 to 1 or rises along its row, a limit is not from 0 to
                K, shapes or types differ, or the step has no price even without drafts.
        """
        limits = np.ascontiguousarray(limits, dtype=np.int32)
        budget = np.ascontiguousarray(budget_rates)
        ranking = np.ascontiguousarray(ranking_rates)
        if self._plan is None:
            return self._verify_all(budget, limits)
        num_drafts = np.empty(len(limits), dtype=np.int32)
        expected, step_ms, num_tokens, kind = self._plan(
            budget, ranking, limits, num_drafts, context_tokens, other_tokens
        )
        return Plan(num_drafts, expected, step_ms, num_tokens, KINDS[kind])

    def _verify_all(self, budget: NDArray, limits: NDArray[np.int32]) -> Plan:
        n = len(limits)
        if budget.shape != (n, self.max_drafts):
            raise ValueError(f"rates have shape {budget.shape}; expected ({n}, {self.max_drafts})")
        if n and not 0 <= limits.min() <= limits.max() <= self.max_drafts:
            raise ValueError(f"limits {limits.tolist()} must be from 0 to {self.max_drafts}")
        counted = np.arange(self.max_drafts) < limits[:, None]
        expected = n + float(budget.sum(where=counted, dtype=np.float64))
        return Plan(limits.copy(), expected, math.nan, n + int(limits.sum()), ALL)
