"""Step costs and verification plans, computed on ARM64 under emulation, are those of x86.

Claim: prices, plans, states and refusals are equal to the bit over whole lives of a planner. If
this fails, ranks on ARM and x86 hosts plan differently, and so do an ARM host and our evidence.
"""

from __future__ import annotations

import pytest
from aarch64.conftest import recorded_counts

LEAST_PLANS = 10_000


@pytest.mark.parametrize("operation", recorded_counts("planner"))
def test_operation(replay, operation):
    tally = replay("planner")
    assert tally["calls"][operation] == recorded_counts("planner")[operation]
    assert not tally["different"].get(operation), tally["told"][operation]


def test_everything_exported_was_called(replay):
    assert replay("planner")["exports"] == sorted(recorded_counts("planner"))


def test_plans_are_many(replay):
    assert replay("planner")["calls"]["PlannerCore.plan"] >= LEAST_PLANS
