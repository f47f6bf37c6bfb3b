"""Plans are the best there are under the model, respect every limit and never lose to a length.

If these fail, a step verifies drafts that cost more than they yield, more drafts than a request may
still use, or ranks of one step verify different lengths and hang.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_deepinfer.scheduler.step_cost import CostSettings, StepCost, StepTimes
from vllm_deepinfer.scheduler.survival import compatible_prior, planning_rates
from vllm_deepinfer.scheduler.verification import (
    PlannerSettings,
    VerificationPlanner,
)

GLOBAL = PlannerSettings(min_benefit=0.0, explore_every=0)
STAIRS = [(1, 10.0), (2, 10.1), (4, 10.3), (8, 10.8), (16, 11.6), (24, 13.4)]


def limits(n: int, value: int) -> np.ndarray:
    return np.full(n, value, dtype=np.int32)


def random_case(seed: int, n: int, num_drafts: int):
    """A staircase with cliffs, chances in eighths and random limits."""
    rng = np.random.default_rng(seed)
    sizes = np.unique(rng.integers(1, n * (num_drafts + 1) + 4, 5)).tolist()
    curve = [(s, 4.0 + 2 * float(rng.integers(0, 9))) for s in sizes]
    chances = np.cumprod(rng.integers(0, 9, (n, num_drafts)) / 8, axis=1)
    return curve, chances, rng.integers(0, num_drafts + 1, n).astype(np.int32)


@given(seed=st.integers(0, 2**32 - 1), n=st.integers(1, 4), num_drafts=st.integers(1, 3))
def test_no_lengths_are_better_than_the_planned_ones(seed, n, num_drafts):
    """Compares with every combination of lengths; of equally good ones the fewest rows win."""
    curve, chances, most = random_case(seed, n, num_drafts)
    cost = StepCost(curve)
    plan = VerificationPlanner(cost, num_drafts, GLOBAL).plan(chances, chances, most)
    best, fewest = 0.0, 0
    for lengths in itertools.product(*(range(limit + 1) for limit in most)):
        expected = n + sum(chances[i, :k].sum() for i, k in enumerate(lengths))
        score, rows = expected / cost.forward_ms(n + sum(lengths)), n + sum(lengths)
        if score > best * (1 + 1e-6) or (score > best * (1 - 1e-6) and rows < fewest):
            best, fewest = max(score, best), rows
    assert plan.expected_tokens / plan.step_ms == pytest.approx(best, rel=1e-6)
    assert plan.num_tokens == fewest
    gained = sum(chances[i, :k].sum() for i, k in enumerate(plan.num_drafts))
    assert plan.expected_tokens == pytest.approx(n + gained, rel=1e-6)
    assert (plan.num_drafts <= most).all() and plan.num_tokens == n + plan.num_drafts.sum()


def test_the_worked_example():
    """A bucket is filled, the cliff behind it is not climbed."""
    confidences = [
        (0.95, 0.9, 0.8, 0.6, 0.5),
        (0.7, 0.5, 0.4, 0.3, 0.2),
        (0.9, 0.85, 0.8, 0.75, 0.7),
        (0.4, 0.3, 0.3, 0.2, 0.1),
    ]
    cost = StepCost(STAIRS, CostSettings.compatible())
    for size, ms in STAIRS:
        for _ in range(10):
            cost.observe(StepTimes(4, size, 0, ms + 0.02 * size, 1.5))
    chances = np.cumprod(confidences, axis=1)
    planner = VerificationPlanner(cost, 5, PlannerSettings.compatible())
    plan = planner.plan(chances, chances, limits(4, 5))
    assert (plan.num_drafts + 1).tolist() == [5, 3, 6, 2]
    assert plan.expected_tokens == pytest.approx(11.407, abs=1e-3)
    assert plan.step_ms == pytest.approx(13.42, abs=1e-6)


def test_a_search_that_stopped_early_would_miss_the_peak():
    """Eight rows are worse than four, sixteen better than both."""
    cost = StepCost([(4, 10.0), (8, 19.0), (16, 20.0)])
    chances = np.full((4, 3), 0.9) ** np.arange(1, 4)
    assert (
        VerificationPlanner(cost, 3, GLOBAL).plan(chances, chances, limits(4, 3)).num_tokens == 16
    )


def test_equally_likely_drafts_go_by_position_or_by_sequence():
    chances = np.full((3, 2), 0.5)
    cost = StepCost([(3, 10.0), (5, 10.0), (6, 99.0)])
    for ties, expected in (("position", [1, 1, 0]), ("sequence", [2, 0, 0])):
        settings = PlannerSettings(min_benefit=0.0, ties=ties)
        plan = VerificationPlanner(cost, 2, settings).plan(chances, chances, limits(3, 2))
        assert plan.num_drafts.tolist() == expected


def test_the_ranking_chooses_within_the_budget():
    """A budget for two of four drafts; the newest round likes the second sequence."""
    cost = StepCost([(2, 10.0), (4, 10.0), (6, 99.0)])
    budget = np.array([[0.9, 0.9], [0.1, 0.1]])
    ranking = np.array([[0.1, 0.1], [0.9, 0.9]])
    planner = VerificationPlanner(cost, 2, GLOBAL)
    assert planner.plan(budget, ranking, limits(2, 2)).num_drafts.tolist() == [0, 2]
    assert planner.plan(budget, budget, limits(2, 2)).num_drafts.tolist() == [2, 0]


def test_tokens_of_prompts_move_the_bucket():
    """Alone, the drafts fit the first bucket; beside a chunk of 14 tokens they need the next."""
    cost = StepCost([(16, 10.0), (64, 40.0)])
    chances = np.full((2, 3), 0.9)
    planner = VerificationPlanner(cost, 3, GLOBAL)
    assert planner.plan(chances, chances, limits(2, 3)).num_tokens == 8
    assert planner.plan(chances, chances, limits(2, 3), other_tokens=14).num_tokens == 2


def test_context_makes_drafts_cheaper_in_proportion():
    """A step that is slow for its context alone verifies more."""
    cost = StepCost([(8, 1.0), (16, 2.0)])
    for i in range(640):
        context = 1000 if i % 2 else 100_000
        for size, ms in cost.curve:
            cost.observe(StepTimes(8, size, context, ms + 1e-4 * context, 0.0))
    chances = np.full((8, 1), 0.5)
    planner = VerificationPlanner(cost, 1, GLOBAL)
    assert planner.plan(chances, chances, limits(8, 1), context_tokens=0).num_tokens == 8
    assert planner.plan(chances, chances, limits(8, 1), context_tokens=10**6).num_tokens == 16


def test_nothing_is_trimmed_without_prices():
    most = np.array([3, 0, 2], dtype=np.int32)
    plan = VerificationPlanner(None, 3).plan(np.full((3, 3), 0.1), np.zeros((3, 3)), most)
    assert (plan.num_drafts.tolist(), plan.num_tokens, plan.kind) == ([3, 0, 2], 8, "all")
    assert math.isnan(plan.step_ms) and plan.expected_tokens == pytest.approx(3.5)
    with pytest.raises(ValueError, match="must be from 0 to 3"):
        VerificationPlanner(None, 3).plan(np.zeros((1, 3)), np.zeros((1, 3)), limits(1, 4))


@pytest.mark.parametrize("n", [3, 2, 1, 0])
def test_a_draining_batch_is_planned_to_its_end(n):
    planner = VerificationPlanner(StepCost(STAIRS), 5)
    chances = np.full((n, 5), 0.8) ** np.arange(1, 6)
    plan = planner.plan(chances, chances, limits(n, 5))
    assert len(plan.num_drafts) == n and plan.num_tokens == n + plan.num_drafts.sum()


def test_a_static_length_stands_until_ranking_gains_enough():
    cost = StepCost([(8, 10.0), (16, 11.0), (24, 20.0)])
    equal = np.tile([0.8, 0.05], (8, 1))
    planner = VerificationPlanner(cost, 2, PlannerSettings(explore_every=0))
    plan = planner.plan(equal, equal, limits(8, 2))
    assert (plan.kind, plan.num_drafts.tolist()) == ("static", [1] * 8)
    unequal = np.repeat([[0.99, 0.98], [0.3, 0.1]], 4, axis=0)
    plan = planner.plan(unequal, unequal, limits(8, 2))
    assert (plan.kind, plan.num_drafts.tolist()) == ("argmax", [2] * 4 + [0] * 4)


def test_noise_does_not_change_a_static_length():
    """Of two lengths of nearly equal worth, which is ahead changes by the step."""
    rng = np.random.default_rng(0)
    cost = StepCost([(8, 10.0), (16, 15.0), (24, 18.75)])
    planner = VerificationPlanner(cost, 2, PlannerSettings(min_benefit=0.5, explore_every=0))
    lengths, ahead = set(), set()
    for _ in range(200):
        chances = np.clip([0.5, 0.375] + 0.002 * rng.standard_normal(2), 0, 1)
        rows = np.tile(chances, (8, 1))
        lengths.add(tuple(planner.plan(rows, rows, limits(8, 2)).num_drafts))
        scores = np.array([1, 1 + chances[0], 1 + chances.sum()]) / [10.0, 15.0, 18.75]
        ahead.add(int(scores.argmax()))
    assert len(lengths) == 1 and len(ahead) > 1


@given(seed=st.integers(0, 2**32 - 1))
def test_no_plan_is_predicted_to_lose_to_a_static_length(seed):
    """Up to what stickiness allows, whatever came before."""
    rng = np.random.default_rng(seed)
    settings = PlannerSettings(explore_every=0)
    cost = StepCost(random_case(seed, 6, 4)[0])
    planner = VerificationPlanner(cost, 4, settings)
    for _ in range(5):
        n = int(rng.integers(1, 7))
        chances = np.cumprod(rng.random((n, 4)) ** 0.3, axis=1)
        most = rng.integers(0, 5, n).astype(np.int32)
        plan = planner.plan(chances, chances, most)
        for length in range(5):
            fixed = np.minimum(most, length)
            expected = n + sum(chances[i, :k].sum() for i, k in enumerate(fixed))
            score = expected / cost.forward_ms(n + int(fixed.sum()))
            allowed = (1 + settings.static_benefit) * (1 + settings.min_benefit)
            assert plan.expected_tokens / plan.step_ms * allowed >= score * (1 - 1e-6)


def test_unmeasured_buckets_are_tried_at_a_bounded_rate_where_little_is_lost():
    cost = StepCost([(8, 10.0), (16, 13.0), (24, 14.9), (32, 40.0)])
    for _ in range(10):
        cost.observe(StepTimes(8, 16, 0, 13.0, 0.0))
    chances = np.tile([0.6, 0.2, 0.1], (8, 1))
    planner = VerificationPlanner(cost, 3, PlannerSettings(explore_every=16))
    plans = [planner.plan(chances, chances, limits(8, 3)) for _ in range(320)]
    tried = [i for i, plan in enumerate(plans) if plan.kind == "explore"]
    assert tried == list(range(15, 320, 16))
    assert {plans[i].num_tokens for i in tried} == {24}  # 32 rows would lose most of the step
    usual, trial = plans[0], plans[15]
    lost = 1 - trial.expected_tokens / trial.step_ms / (usual.expected_tokens / usual.step_ms)
    assert 0 < lost <= 0.03
    for _ in range(10):
        cost.observe(StepTimes(8, 24, 0, 14.9, 0.0))
    plans = [planner.plan(chances, chances, limits(8, 3)) for _ in range(64)]
    assert {plan.kind for plan in plans} == {"static"}


def test_compatible_settings_never_explore():
    cost = StepCost([(8, 10.0), (16, 13.0), (24, 15.2)], CostSettings.compatible())
    planner = VerificationPlanner(cost, 2, PlannerSettings.compatible())
    chances = np.tile([0.6, 0.2], (8, 1))
    for _ in range(20):
        cost.observe(StepTimes(8, 16, 0, 13.0, 0.0))
    kinds = {planner.plan(chances, chances, limits(8, 2)).kind for _ in range(64)}
    assert kinds == {"argmax"}


def test_settings_are_checked():
    for name in ("min_benefit", "static_benefit", "explore_loss"):
        with pytest.raises(ValueError, match=f"{name} is 1.0; it must be"):
            PlannerSettings(**{name: 1.0})
    with pytest.raises(ValueError, match="explore_every is -1"):
        PlannerSettings(explore_every=-1)
    with pytest.raises(ValueError, match="ties is 'random'; allowed"):
        PlannerSettings(ties="random")
    with pytest.raises(ValueError, match="max_drafts is 0"):
        VerificationPlanner(None, 0)


def test_which_round_feeds_budget_and_ranking():
    """Settled rounds alone feed the budget, with a step in flight or not."""
    newest, previous = np.full((4, 2), 0.5), np.full((4, 2), 0.25)
    known = np.array([True, True, False, False])
    flying = np.array([False, True, False, True])
    prior = np.array([0.75, 0.125])
    budget, ranking = planning_rates(newest, previous, known, known, flying, prior)
    assert budget.tolist() == [[0.25, 0.25], [0.5, 0.5], [0.75, 0.125], [0.75, 0.125]]
    assert ranking.tolist() == [[0.5, 0.5], [0.5, 0.5], [0.75, 0.125], [0.75, 0.125]]
    # The first step after a prefill knows its drafts' round and none before it.
    budget, ranking = planning_rates(newest, previous, known, ~known, flying, prior)
    assert budget[0].tolist() == [0.75, 0.125] and ranking[0].tolist() == [0.5, 0.5]
    stand_in = compatible_prior(np.array([True, False, False]), np.array([False, True, False]), 2)
    assert stand_in.tolist() == [[1, 1], [1, 1], [0, 0]]
