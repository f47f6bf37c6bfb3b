"""Run a test on the C++ planner and on its Python reference."""

from __future__ import annotations

from typing import Any

from vllm_deepinfer.scheduler import (
    planner_backend,
    step_cost,
    step_cost_reference,
    verification_reference,
)

BACKENDS = ("extension", "reference")


def using(name: str, monkeypatch: Any) -> None:
    """Make new step costs, and the planners on them, use this backend."""
    classes = step_cost_reference.CostCore, verification_reference.PlannerCore
    if name == "extension":
        classes = planner_backend.backend()
        assert classes[0].__module__ == "vllm_deepinfer._planner", "the extension was not built"
    monkeypatch.setattr(step_cost, "backend", lambda: classes)
