"""vLLM's own adaptive verification plans with the costs we learn.

If this fails, engines with CUDA graphs trim drafts by a stale profile, or tensor-parallel ranks
refresh at different steps and hang. The manager is vLLM's class on a CPU: its CUDA streams are not
made, its budget and cost tables are.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from vllm.v1.worker.gpu.spec_decode import adaptive_verification as upstream

from vllm_deepinfer.scheduler.step_cost import CostSettings, StepCost, StepTimes
from vllm_deepinfer.scheduler.verification import PlannerSettings, VerificationPlanner
from vllm_deepinfer.testing.adaptive_manager import manager_on_cpu
from vllm_deepinfer.worker.adaptive_costs import AdaptiveCosts

SIZES = [4, 8, 16, 24]
FLAT = [(4, 10.0), (8, 10.1), (16, 10.2), (24, 10.3)]
NUM_SEQS, NUM_DRAFTS = 4, 5


@pytest.fixture
def broadcasts(monkeypatch) -> list:
    """What a group of one rank was asked to broadcast."""
    sent: list = []

    def broadcast_object(curves, src):
        sent.append(curves)
        return curves

    group = SimpleNamespace(broadcast_object=broadcast_object)
    monkeypatch.setattr(upstream, "get_tp_group", lambda: group)
    return sent


@pytest.fixture
def manager(broadcasts):
    confidences = np.full((NUM_SEQS, NUM_DRAFTS), 0.8, dtype=np.float32)
    manager = manager_on_cpu(confidences, SIZES[-1], max_num_batched_tokens=64)
    manager.set_cost_curves([(1, 1.0), (4, 2.0)], FLAT)
    broadcasts.clear()
    return manager


def num_tokens(manager) -> int:
    names = [str(i) for i in range(NUM_SEQS)]
    return manager.get_num_tokens(
        dict.fromkeys(names, NUM_DRAFTS + 1), {name: [0] * NUM_DRAFTS for name in names}
    )


def test_budgets_follow_measured_steps(manager, broadcasts):
    assert num_tokens(manager) == 24
    costs = AdaptiveCosts(manager, SIZES, refresh_every_steps=20)
    steps = [StepTimes(NUM_SEQS, size, 0, ms, 2.0) for size, ms in ((16, 10.2), (24, 30.0))] * 10
    for times in steps[:-1]:
        costs.step(times)
    assert num_tokens(manager) == 24 and broadcasts == []
    costs.step(steps[-1])
    assert len(broadcasts) == 1
    draft_ms, verify_ms = manager.cost_tables
    assert (verify_ms[16], verify_ms[24], draft_ms[NUM_SEQS]) == (10.2, 30.0, 2.0)
    assert num_tokens(manager) == 16


def test_budgets_equal_our_planners_under_the_same_costs(manager):
    cost = StepCost([(4, 10.0), (8, 12.0), (16, 13.0), (24, 19.0)])
    for _ in range(10):
        cost.observe(StepTimes(NUM_SEQS, 16, 0, 14.0, 3.0))
    AdaptiveCosts(manager, SIZES, cost=cost).refresh()
    rates = np.cumprod(np.full((NUM_SEQS, NUM_DRAFTS), 0.8), axis=1)
    planner = VerificationPlanner(cost, NUM_DRAFTS, PlannerSettings(min_benefit=0.0))
    plan = planner.plan(rates, rates, np.full(NUM_SEQS, NUM_DRAFTS, dtype=np.int32))
    assert num_tokens(manager) == plan.num_tokens == 16


def test_learning_starts_from_vllms_profile(manager):
    costs = AdaptiveCosts(manager, SIZES)
    assert costs.cost.curve[:4] == FLAT
    assert [size for size, _ in costs.cost.curve[4:]] == [36, 48, 64]  # run without a graph
    before = [table.copy() for table in manager.cost_tables]
    costs.refresh()
    np.testing.assert_array_equal(manager.cost_tables[0], before[0])
    for tokens in (*range(25), 36, 40, 48, 50, 64):
        assert manager.cost_tables[1][tokens] == pytest.approx(before[1][tokens])


def test_ranks_refresh_at_the_same_step_whatever_they_measured(manager, broadcasts):
    """One rank measures every step, one none."""
    for times in (StepTimes(NUM_SEQS, 16, 0, 11.0, 2.0), None):
        broadcasts.clear()
        costs, refreshed = AdaptiveCosts(manager, SIZES, refresh_every_steps=7), []
        for step in range(1, 30):
            costs.step(times)
            if len(broadcasts) > len(refreshed):
                refreshed.append(step)
        assert refreshed == [7, 14, 21, 28]


def test_costs_beyond_the_largest_bucket_are_given_only_where_known(manager):
    refusing = StepCost(FLAT, CostSettings.compatible())
    assert AdaptiveCosts(manager, SIZES, cost=refusing).verification_curve() == FLAT
    curve = AdaptiveCosts(manager, SIZES, cost=StepCost(FLAT)).verification_curve()
    assert curve[-1] == (64, pytest.approx(10.8))


def test_a_manager_without_a_profile_is_refused(manager):
    with pytest.raises(ValueError, match="refresh_every_steps is 0"):
        AdaptiveCosts(manager, SIZES, refresh_every_steps=0)
    with pytest.raises(ValueError, match="no graph is captured"):
        AdaptiveCosts(manager, [])
    manager.cost_tables = None
    with pytest.raises(ValueError, match="no costs yet"):
        AdaptiveCosts(manager, SIZES)
