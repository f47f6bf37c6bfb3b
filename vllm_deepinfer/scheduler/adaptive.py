"""Confidence-scheduled verification inside vLLM's scheduler: how many drafts of each request a step
verifies, decided before vLLM's own ``schedule`` counts them."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from vllm_deepinfer.metrics.catalogue import PLANNER_SECONDS, PLANS, counter
from vllm_deepinfer.metrics.shared_counters import SharedCounters
from vllm_deepinfer.scheduler.drafting import DraftLedger
from vllm_deepinfer.scheduler.step_cost import CostSettings, StepCost, StepTimes
from vllm_deepinfer.scheduler.survival import compatible_prior, planning_rates
from vllm_deepinfer.scheduler.verification import PlannerSettings, VerificationPlanner


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

    def observe(self, times: StepTimes) -> None:
        """Learn from a step of decodes."""
        if self.cost is not None:
            self.cost.observe(times)

    def trim(self, scheduler: Any, context_tokens: int, other_tokens: int) -> None:
        """Shorten the drafts of running requests to what the next step should verify.

        Args:
            scheduler: vLLM's, about to schedule.
            context_tokens: of its running requests.
            other_tokens: prompt tokens the step will compute besides.
        """
        begin_s = time.perf_counter()
        requests = [request for request in scheduler.running if request.spec_token_ids]
        if not requests:
            return
        num_started = sum([request.is_prefill_chunk for request in scheduler.running])
        num_undrafted = len(scheduler.running) - len(requests) - num_started
        offered = [len(request.spec_token_ids) for request in requests]
        budget, ranking = self._rates(requests)
        plan = self._planner.plan(
            budget,
            ranking,
            np.minimum(offered, self._tokens_left(scheduler, requests)),
            context_tokens=context_tokens,
            other_tokens=other_tokens + num_undrafted,
        )
        for request, length, count in zip(requests, plan.num_drafts.tolist(), offered, strict=True):
            if length < count:
                # A new list: vLLM's asynchronous scheduler shares one between requests.
                request.spec_token_ids = request.spec_token_ids[:length]
        self._counters.add(counter(PLANS, plan.kind))
        self._counters.add(PLANNER_SECONDS, time.perf_counter() - begin_s)

    def _rates(self, requests: list[Any]) -> tuple[np.ndarray, np.ndarray]:
        """Budget and ranking rows, float32 ``[n, K]``."""
        table = self._table
        rows = table.rows([request.request_id for request in requests])
        rounds = table.num_rounds[rows]
        in_flight = np.zeros(len(rows), dtype=bool)
        if self._is_async:
            in_flight[:] = [request.num_in_flight_tokens > 0 for request in requests]
        if self._is_compatible:
            prior = compatible_prior(rounds > 0, in_flight, table.num_drafts)
        else:
            prior = self._ledger.mean_survival.rates()
        return planning_rates(
            table.newest_rates[rows],
            table.previous_rates[rows],
            rounds > 0,
            rounds > 1,
            in_flight,
            prior.astype(np.float32),
        )

    def _tokens_left(self, scheduler: Any, requests: list[Any]) -> np.ndarray:
        """Drafts that could still become output, int32 ``[n]``: one token of the step is the
        target's own, and a step in flight yields at least one."""
        most = scheduler.max_model_len
        ends = [min(r.num_prompt_tokens + r.max_tokens, most) - r.num_tokens for r in requests]
        left = np.array(ends, dtype=np.int32) - 1
        if self._is_async:
            left -= np.array([request.num_in_flight_tokens > 0 for request in requests])
        return np.maximum(left, 0)
