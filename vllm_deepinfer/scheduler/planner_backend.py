"""The planner's arithmetic: the C++ extension, or where it was not built the same in Python."""

from __future__ import annotations

from typing import Any

from vllm_deepinfer.scheduler import extension, step_cost_reference, verification_reference


def backend() -> tuple[type[Any], type[Any]]:
    """The classes ``CostCore`` and ``PlannerCore``, both of one kind."""
    planner = extension.load("planner", "plans are made in Python, tens of times slower")
    if planner is None:
        return step_cost_reference.CostCore, verification_reference.PlannerCore
    return planner.CostCore, planner.PlannerCore
