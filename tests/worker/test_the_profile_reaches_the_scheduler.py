"""What a worker timed at its start travels with the first step the scheduler sees.

vLLM 0.33 warms a worker up by steps of its own, which sample as others do. If this breaks, the
profile goes out with one of those, and the planner plans without costs.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from vllm.v1.worker.cpu_worker import CPUWorker

from vllm_deepinfer.scheduler.step_report import attached
from vllm_deepinfer.worker.cpu import DeepInferCpuWorker
from vllm_deepinfer.worker.step_profile import ForwardClock

PROFILE = ((1, 2.0), (2, 3.0))


@pytest.fixture
def worker(monkeypatch):
    """A worker around no model; vLLM's part of it samples one request."""
    worker = DeepInferCpuWorker.__new__(DeepInferCpuWorker)
    options = {"deepinfer": {"verification": "adaptive"}}
    worker.vllm_config = SimpleNamespace(additional_config=options)
    worker.model_runner = SimpleNamespace(speculator=None)
    worker._clock = ForwardClock(
        SimpleNamespace(
            register_forward_pre_hook=lambda hook: None, register_forward_hook=lambda hook: None
        )
    )
    worker._execute_s, worker._profile = 0.0, ()
    monkeypatch.setattr(worker, "_profile_decoding", lambda: PROFILE, raising=False)
    monkeypatch.setattr(
        CPUWorker, "sample_tokens", lambda self, grammar: SimpleNamespace(req_ids=["a"])
    )
    return worker


@pytest.mark.parametrize("num_warm_up_steps", [0, 1, 3])
def test_no_warm_up_step_takes_it(worker, monkeypatch, num_warm_up_steps):
    seen = []

    def warm_up(self):
        seen.extend(attached(self.sample_tokens(None)) for _ in range(num_warm_up_steps))
        return "times"

    monkeypatch.setattr(CPUWorker, "compile_or_warm_up_model", warm_up)
    assert worker.compile_or_warm_up_model() == "times"
    assert [report.profile for report in seen] == [()] * num_warm_up_steps
    assert attached(worker.sample_tokens(None)).profile == PROFILE
    assert attached(worker.sample_tokens(None)).profile == ()
