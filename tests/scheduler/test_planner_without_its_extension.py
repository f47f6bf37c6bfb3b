"""Without the C++ extensions everything is computed in Python, and that is said once.

If this fails, a machine without a compiler cannot schedule, or a broken build goes unnoticed.
"""

from __future__ import annotations

import importlib
import subprocess
import sys

import numpy as np
import pytest

from vllm_deepinfer.log import warn_once
from vllm_deepinfer.scheduler import (
    extension,
    planner_backend,
    request_loops,
    request_loops_reference,
    step_cost_reference,
)
from vllm_deepinfer.scheduler.step_cost import StepCost
from vllm_deepinfer.scheduler.verification import VerificationPlanner


@pytest.fixture
def said(monkeypatch):
    """Warnings of missing extensions from now on."""
    found = []
    warn_once.cache_clear()
    monkeypatch.setattr(extension.logger, "warning", lambda text, **_: found.append(text))
    yield found
    warn_once.cache_clear()


def test_plans_are_made_in_python_and_it_is_logged_once(monkeypatch, said):
    monkeypatch.setitem(sys.modules, "vllm_deepinfer._planner", None)
    for _ in range(2):
        cost = StepCost([(8, 10.0)])
        assert isinstance(cost.core, step_cost_reference.CostCore)
        rates = np.full((2, 3), 0.5)
        plan = VerificationPlanner(cost, 3).plan(rates, rates, np.full(2, 3, dtype=np.int32))
        assert plan.num_tokens == 8
    assert len(said) == 1 and "was not built" in said[0] and "compiler" in said[0]


def test_requests_are_looped_over_in_python_and_it_is_logged_once(monkeypatch, said):
    monkeypatch.setitem(sys.modules, "vllm_deepinfer._scheduling", None)
    assert [request_loops.backend() for _ in range(2)] == [request_loops_reference] * 2
    assert len(said) == 1 and "was not built" in said[0] and "compiler" in said[0]


@pytest.mark.parametrize("module", [planner_backend, request_loops])
def test_an_extension_that_does_not_load_is_no_missing_one(monkeypatch, module):
    def broken(name):
        raise ImportError("undefined symbol")

    monkeypatch.setattr(importlib, "import_module", broken)
    with pytest.raises(ImportError, match="undefined symbol"):
        module.backend()


def test_the_planner_needs_neither_torch_nor_vllm():
    """Simulations and tools plan without them."""
    program = (
        "import sys; import vllm_deepinfer.scheduler.verification, "
        "vllm_deepinfer.scheduler.cost_store; "
        "print(sorted({'torch', 'vllm'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (run.returncode, run.stdout.strip()) == (0, "[]"), run.stderr
