"""Costs are learned from decode steps that drafted.

vLLM 0.33 drafts nothing in a step whose drafts no request can use, the last of every lone request.
If this breaks, drafting looks cheaper than it is wherever requests are short.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from vllm_deepinfer.scheduler.mixin import DeepInferMixin, StepShape
from vllm_deepinfer.scheduler.step_report import StepReport
from vllm_deepinfer.scheduler.vote import Phase

PROFILE = ((1, 2.0),)


def learned(phase: Phase, **output) -> list:
    """What a step teaches: profiles as they are, times as (requests, tokens)."""
    seen = []
    verification = SimpleNamespace(
        learn_profile=seen.append,
        observe=lambda times: seen.append((times.num_seqs, times.num_tokens)),
    )
    parts = SimpleNamespace(trace=None, voting=None, verification=verification)
    scheduler_output = SimpleNamespace(
        num_scheduled_tokens={"a": 6, "b": 1}, total_num_scheduled_tokens=7, **output
    )
    shape = StepShape(0, None, phase, 0, 100)
    report = StepReport(None, forward_ms=1.0, sampler_ms=1.0, profile=PROFILE)
    DeepInferMixin._learn(SimpleNamespace(parts=parts), scheduler_output, shape, report)
    return seen


@pytest.mark.parametrize(
    ("output", "drafted"),
    [({}, True), ({"skip_drafts": False}, True), ({"skip_drafts": True}, False)],
    ids=["vLLM 0.32", "drafts", "no drafts"],
)
def test_only_decode_steps_with_drafts_are_observed(output, drafted):
    assert learned(Phase.DECODE, **output) == [PROFILE] + [(2, 7)] * drafted
    assert learned(Phase.PREFILL, **output) == [PROFILE]
