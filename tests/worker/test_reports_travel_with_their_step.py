"""A report carries the confidences and times of its own step, however late they arrive.

If this fails, the next step's drafting writes over the confidences a report still has to bring.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.worker.cpu import shm  # noqa: F401  streams that do nothing, as on vLLM's CPU platform

from vllm_deepinfer.scheduler.step_report import attached
from vllm_deepinfer.worker.reported_output import ReportedOutput, logits_of, send_confidences
from vllm_deepinfer.worker.step_clock import TimedStep

STREAM = torch.cuda.Stream()
NUM_DRAFTS = 3


class Event:
    def __init__(self, time_ms: float = 0.0) -> None:
        self.time_ms, self.waited = time_ms, False

    def synchronize(self) -> None:
        self.waited = True

    def elapsed_time(self, end: Event) -> float:
        assert end.waited or end.time_ms < 2
        return end.time_ms - self.time_ms


class Output:
    """vLLM's output of a step, resolved to what the scheduler gets."""

    def __init__(self, request_ids):
        self.output = ModelRunnerOutput(
            req_ids=request_ids, req_id_to_index={r: i for i, r in enumerate(request_ids)}
        )

    def get_output(self):
        return self.output

    def get_kv_connector_output(self):
        return "of the connector"


def speculator(keeps_logits: bool):
    model = SimpleNamespace()
    if keeps_logits:
        model.confidence_logits = torch.zeros(8 * NUM_DRAFTS)
    probabilities = torch.zeros(8, NUM_DRAFTS)
    return SimpleNamespace(model=model, draft_token_confidence_probs=probabilities)


@pytest.mark.parametrize("keeps_logits", [True, False])
def test_confidences_are_those_of_the_step_that_sent_them(keeps_logits):
    drafter = speculator(keeps_logits)
    outputs = []
    for number in range(3):
        rows = [f"request {number}-{row}" for row in range(number + 1)]
        drafter.draft_token_confidence_probs.fill_(0.2 + 0.2 * number)
        if keeps_logits:
            drafter.model.confidence_logits.fill_(float(number))
        sent = send_confidences(rows, drafter, STREAM, STREAM)
        step = TimedStep(Event(0.0), Event(1.0 + number / 10), Event(2.0 + number))
        outputs.append(ReportedOutput(Output(rows), step, sent, Event(), ()))
    for number, output in enumerate(outputs):
        report = attached(output.get_output())
        blocks = report.confidences
        assert blocks.request_ids == [f"request {number}-{row}" for row in range(number + 1)]
        assert blocks.probabilities.shape == blocks.logits.shape == (number + 1, NUM_DRAFTS)
        assert blocks.probabilities == pytest.approx(0.2 + 0.2 * number)
        chance = 0.2 + 0.2 * number
        wanted = number if keeps_logits else torch.logit(torch.tensor(chance)).item()
        assert blocks.logits == pytest.approx(wanted, abs=1e-5)
        assert report.forward_ms == pytest.approx(1.0 + number / 10)
        assert report.sampler_ms == pytest.approx(1.0 + 0.9 * number)


def test_step_that_drafted_nothing_reports_its_times_and_profile():
    step = TimedStep(Event(0.0), Event(1.0), Event(3.0))
    output = ReportedOutput(Output(["a"]), step, None, None, ((1, 2.0),))
    assert output.get_kv_connector_output() == "of the connector"
    report = attached(output.get_output())
    assert (report.confidences, report.profile) == (None, ((1, 2.0),))


@given(st.lists(st.floats(-15.0, 15.0, width=32), min_size=1))
def test_logits_come_back_from_a_sigmoid(logits):
    wanted = torch.tensor(logits, dtype=torch.float32)
    found = logits_of(torch.sigmoid(wanted))
    # Near 1 a float32 probability steps by 2^-24, which is all that is left of the logit there.
    tolerance = 1e-4 + 2**-23 * torch.exp(wanted.abs())
    assert bool(((found - wanted).abs() <= tolerance).all())


def test_certain_drafts_have_finite_logits():
    found = logits_of(torch.tensor([0.0, 1.0]))
    assert found.tolist() == [-16.0, 16.0]
