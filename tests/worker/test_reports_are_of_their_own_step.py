"""A step's report holds the confidences of the drafts of that step, or none.

vLLM 0.33 drafts nothing in a step whose drafts no request can use. If this breaks, such a step
reports the confidences of an earlier one, for other requests, or ends the engine on their number.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from vllm_deepinfer.scheduler.step_report import attached
from vllm_deepinfer.worker import reports

NUM_DRAFTS = 5


def speculator(rows: int) -> SimpleNamespace:
    """What a speculator holds after a step that drafted for so many requests."""
    return SimpleNamespace(
        model=SimpleNamespace(newest_confidence_logits=torch.randn(rows * NUM_DRAFTS)),
        draft_token_confidence_probs=torch.rand(8, NUM_DRAFTS),
    )


def report(drafter: SimpleNamespace, request_ids: list[str]):
    output = SimpleNamespace(req_ids=request_ids)
    assert reports.send_report(output, drafter, 1.0, 2.0, ())
    return attached(output)


@pytest.mark.parametrize("rows_before", [1, 2, 3, 8])
def test_a_step_that_drafts_nothing_reports_no_confidences(rows_before):
    drafter = speculator(rows_before)
    reports.forget_block(drafter)
    found = report(drafter, ["a", "b"])
    assert found.confidences is None
    assert (found.forward_ms, found.sampler_ms) == (1.0, 2.0)


def test_a_step_that_drafts_reports_what_the_drafter_said():
    drafter = speculator(3)
    reports.forget_block(drafter)
    drafter.model.newest_confidence_logits = torch.arange(2.0 * NUM_DRAFTS)
    found = report(drafter, ["a", "b"]).confidences
    assert found.request_ids == ["a", "b"]
    assert found.logits.tolist() == torch.arange(10.0).view(2, NUM_DRAFTS).tolist()
    assert found.probabilities.tolist() == drafter.draft_token_confidence_probs[:2].tolist()


def test_without_drafting_there_is_nothing_to_forget():
    reports.forget_block(None)
    assert report(None, ["a"]).confidences is None
