"""In compatible settings plans equal DeepInfer's.

If this fails, `compatible()` no longer means what it says. 240 recorded cases: a profile, measured
steps, each sequence's last two rounds of chances and its counters, and the rows DeepInfer's own
planner chose.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from planner_backends import BACKENDS, using

from vllm_deepinfer.scheduler.step_cost import CostSettings, StepCost
from vllm_deepinfer.scheduler.survival import compatible_prior, planning_rates
from vllm_deepinfer.scheduler.verification import PlannerSettings, VerificationPlanner

DATA = Path(__file__).parent.parent / "data" / "mtp_varlen_cases.json.gz"
CASES = json.loads(gzip.decompress(DATA.read_bytes()))


def rows(case: dict[str, Any], name: str, num_drafts: int) -> tuple[np.ndarray, np.ndarray]:
    known = np.array([bool(seq[name]) for seq in case["seqs"]])
    rates = [seq[name] + [0.0] * (num_drafts - len(seq[name])) for seq in case["seqs"]]
    return np.array(rates), known


def planned_rows(case: dict[str, Any]) -> list[int]:
    cost = None
    if case["curve"]:
        cost = StepCost(case["curve"], CostSettings.compatible())
        for num_seqs, bucket, forward_ms, sampler_ms in case["updates"]:
            # Past the front: some recorded times are negative, which it refuses.
            cost.core.observe(num_seqs, bucket, 0, forward_ms, sampler_ms)
    limits = np.array([seq["num_drafts"] for seq in case["seqs"]], dtype=np.int32)
    num_drafts = int(limits.max())
    newest, has_newest = rows(case, "accept_rates", num_drafts)
    previous, has_previous = rows(case, "prev_accept_rates", num_drafts)
    in_flight = np.array([s["schedule_cnt"] != s["process_cnt"] for s in case["seqs"]])
    has_drafts = np.array([bool(s["has_draft"]) for s in case["seqs"]])
    prior = compatible_prior(has_drafts, in_flight, num_drafts)
    rates = planning_rates(newest, previous, has_newest, has_previous, in_flight, prior)
    planner = VerificationPlanner(cost, num_drafts, PlannerSettings.compatible())
    return (planner.plan(*rates, limits).num_drafts + 1).tolist()


@pytest.mark.parametrize("backend", BACKENDS)
def test_compatible_plans_equal_the_recorded_ones(backend, monkeypatch):
    using(backend, monkeypatch)
    wrong = [i for i, case in enumerate(CASES) if planned_rows(case) != case["expected_seqlens_q"]]
    assert wrong == []
    trimmed = sum(sum(c["expected_seqlens_q"]) < num_rows(c) for c in CASES)
    assert (len(CASES), trimmed) == (240, 145)


def num_rows(case: dict[str, Any]) -> int:
    return sum(seq["num_drafts"] + 1 for seq in case["seqs"])
