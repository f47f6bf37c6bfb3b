"""Confidence-scheduled verification inside vLLM's scheduler: how many drafts of each request a step
verifies, decided before vLLM's own ``schedule`` counts them."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from vllm_deepinfer.log import get_logger
from vllm_deepinfer.metrics.catalogue import PLANNER_SECONDS, PLANS, counter
from vllm_deepinfer.metrics.shared_counters import SharedCounters
from vllm_deepinfer.scheduler import request_loops
from vllm_deepinfer.scheduler.announce import describe_cost
from vllm_deepinfer.scheduler.drafting import DraftLedger
from vllm_deepinfer.scheduler.readiness import RunningRequests
from vllm_deepinfer.scheduler.recalibration import Recalibration
from vllm_deepinfer.scheduler.step_cost import CostSettings, StepCost, StepTimes
from vllm_deepinfer.scheduler.verification import ALL, PlannerSettings, VerificationPlanner

logger = get_logger(__name__)

_FIRST_REQUESTS = 64


class AdaptiveVerification:
    """Plans each step and learns what steps cost.

    Args:
        ledger: what drafters said of each request.
        counters: with those of ``PLAN_FAMILIES``.
        is_async: a step may be in flight while the next is planned.
        is_compatible: plan by DeepInfer's rules.
        settings: the planner's; ``cost_settings``: those of costs measured anew.
        cost: measured by an earlier run; otherwise the first step's report brings a profile, and
            all drafts are verified until then.
    """

    def __init__(
        self,
        ledger: DraftLedger,
        counters: SharedCounters,
        is_async: bool,
        is_compatible: bool,
        settings: PlannerSettings,
        cost_settings: CostSettings,
        cost: StepCost | None = None,
    ) -> None:
        self._ledger, self._table, self._counters = ledger, ledger.table, counters
        self._is_async, self._is_compatible = is_async, is_compatible
        self._settings, self._cost_settings = settings, cost_settings
        if not is_compatible:
            ledger.recalibration = Recalibration(ledger.table.num_drafts)
        self._loops = request_loops.backend()
        self._make_room(_FIRST_REQUESTS)
        self._use(cost)

    @property
    def cost(self) -> StepCost | None:
        """Step costs as known now."""
        return self._planner.cost

    def _use(self, cost: StepCost | None) -> None:
        self._planner = VerificationPlanner(cost, self._table.num_drafts, self._settings)

    def learn_profile(self, profile: tuple[tuple[int, float], ...]) -> None:
        """Start from a profile of this run, unless an earlier run's costs are known."""
        if profile and self.cost is None:
            self._use(StepCost(profile, self._cost_settings))
            logger.info("Step costs: %s.", describe_cost(self.cost))

    def observe(self, times: StepTimes) -> None:
        """Learn from a step of decodes."""
        if self.cost is not None:
            self.cost.observe(times)

    def collect(self, scheduler: Any) -> RunningRequests:
        """What the next step needs to know of vLLM's running requests."""
        table, running = self._table, scheduler.running
        if len(running) > len(self._limits):
            self._make_room(2 * len(running))
        mean = None if self._is_compatible else self._ledger.mean_survival
        drafted, started, context_tokens = self._loops.collect(
            running,
            self._is_async,
            scheduler.max_model_len,
            table.row_by_request,
            table.newest_rates,
            table.previous_rates,
            table.num_rounds,
            None if mean is None else mean.survived,
            None if mean is None else mean.reached,
            self._limits,
            self._budget,
            self._ranking,
        )
        return RunningRequests(started, context_tokens, drafted)

    def _make_room(self, num_requests: int) -> None:
        self._limits = np.zeros(num_requests, dtype=np.int32)
        self._budget, self._ranking = np.zeros(
            (2, num_requests, self._table.num_drafts), dtype=np.float32
        )

    def trim(self, requests: RunningRequests, num_running: int, other_tokens: int) -> None:
        """Shorten the drafts of running requests to what the next step should verify.

        Args:
            requests: just collected.
            num_running: how many run, without drafts included.
            other_tokens: prompt tokens the step will compute besides.
        """
        begin_s = time.perf_counter()
        n = len(requests.drafted)
        if not n:
            return
        other_tokens += num_running - n - len(requests.started)
        if self.cost is not None and not self.cost.has_price(n + other_tokens):
            # By DeepInfer's rules: it knows no step above its largest graph, nor one with prompts.
            self._counters.add(counter(PLANS, ALL))
            return
        plan = self._planner.plan(
            self._budget[:n],
            self._ranking[:n],
            self._limits[:n],
            context_tokens=requests.context_tokens,
            other_tokens=other_tokens,
        )
        self._loops.trim(requests.drafted, plan.num_drafts)
        self._counters.add(counter(PLANS, plan.kind))
        self._counters.add(PLANNER_SECONDS, time.perf_counter() - begin_s)
