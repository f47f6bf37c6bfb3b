"""The simulated planner is told what the engine's is told, and no sooner. Else simulated plans use
what no engine may know, and their gain is not to be had."""

from __future__ import annotations

import numpy as np
import pytest

from vllm_deepinfer.simulator import Simulation, scenario_from

ALONE = {
    "curve": "mi350x-v4",
    "ranks": 1,
    "sequences": 1,
    "trace": "closed",
    "concurrency": 1,
    "output_tokens": 100_000,
    "verification": "adaptive",
    "drafts": 4,
    "confidence_noise": 0.5,
    "steps": 40,
}


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_budgets_are_a_round_older_than_the_drafts_and_rankings_as_new_as_they_come(is_async):
    options = ALONE | ({"async_scheduling": True} if is_async else {})
    simulation = Simulation(scenario_from(options))
    speculation = simulation.speculation
    planner, draft = speculation.planners[0], speculation.draft
    plan, said, given = planner.plan, [], []

    def noting_draft(slots: np.ndarray) -> None:
        draft(slots)
        said.append(speculation.model.confidence_rows[speculation._said[0]])

    def noting_plan(budget, ranking, *more):
        given.append((len(said), budget[0].copy(), ranking[0].copy()))
        return plan(budget, ranking, *more)

    speculation.draft, planner.plan = noting_draft, noting_plan
    simulation.run()
    assert len({tuple(row) for row in said}) > 20, "rounds must differ for this to show anything"
    for num_drafted, budget, ranking in given[2:]:
        newest, before = said[num_drafted - 1], said[num_drafted - 2]
        assert budget.tolist() == before.tolist()
        assert ranking.tolist() == (before if is_async else newest).tolist()


def test_the_first_block_is_judged_by_what_drafts_did_so_far():
    simulation = Simulation(scenario_from(ALONE))
    planner = simulation.speculation.planners[0]
    plan, budgets = planner.plan, []

    def noting_plan(budget, *more):
        budgets.append(budget[0].copy())
        return plan(budget, *more)

    planner.plan = noting_plan
    prior = simulation.speculation._mean_survival.rates()
    simulation.run()
    assert budgets[0] == pytest.approx(prior)


def test_costs_are_learned_from_steps_not_read_from_the_machine():
    """Before the first step the planner knows a profile without context, sampling and drafting."""
    simulation = Simulation(scenario_from(ALONE | {"sequences": 64, "concurrency": 64}))
    curve, cost = simulation.scenario.curve, simulation.speculation.planners[0].cost
    drafting_ms = curve.drafter_ms(np.array([64]))[0] + curve.sampler_ms(np.array([64]))[0]
    assert cost.sampler_ms(64) == 0
    simulation.run()
    assert cost.sampler_ms(64) == pytest.approx(drafting_ms, rel=0.05)
