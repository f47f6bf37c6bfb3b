"""What is compiled for GPUs ahead of time is what the model launches there.

Claim: steps taken without values call the operations that real prompts, decode steps and drafts of
the tiny model call, in the same forms and no others; the published launches are those calls. If
this breaks, docs/kernels-compiled.md tells of launches that nobody makes, and the first one that
somebody does make is compiled on a GPU for the first time.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from vllm_deepinfer.models.deepseek_v41.recorded_calls import recorded_calls, recording
from vllm_deepinfer.models.deepseek_v41.standalone import Chunk, StandaloneModel
from vllm_deepinfer.models.deepseek_v41.standalone_draft import StandaloneDraft
from vllm_deepinfer.ops.numerics import Numerics
from vllm_deepinfer.ops.triton import OPERATIONS

MODEL = Path(__file__).parents[1] / "data" / "v41_tiny"
LEFT_TO_TORCH = {"rope_angles"}
PROMPT = [3 + n % 500 for n in range(300)]


@pytest.fixture(scope="module")
def target():
    return StandaloneModel.load(MODEL, Numerics(), max_tokens=512)


@pytest.fixture(scope="module")
def served(target):
    """Forms of the calls of a long prompt, of the token after it, and of a block of drafts."""
    draft = StandaloneDraft.load(MODEL, target)
    taps = draft.tap_layers()
    with recording(target.decoder, draft.draft) as recorder:
        hidden = target.compute([Chunk(0, PROMPT)], taps=taps)
        draft.observe(taps, 0)
        target.logits(hidden[-1:])
        target.logits(target.compute([Chunk(0, [5])]))
        draft.propose(len(PROMPT), 5)
    return {(call.module, call.form) for call in recorder.calls}


def test_steps_without_values_call_what_real_steps_call(target, served):
    traced = recorded_calls(target.config, 8, 1, 512)
    forms = {call.form for call in traced}
    assert forms == {form for _, form in served}
    assert {(call.module, call.form) for call in traced} <= served


@pytest.fixture(scope="module")
def published():
    pytest.importorskip("triton", reason="the launches under test are Triton's")
    from vllm_deepinfer.ops.triton import published_launches

    return published_launches


def test_launches_are_all_calls_and_only_those(published, served):
    called = {form[0] for _, form in served}
    assert called == {*OPERATIONS} - {*published.NEVER_CALLED} | LEFT_TO_TORCH
    launches = published.published_launches()
    assert {launch.operation for launch in launches} == {*OPERATIONS}
    words = [(launch.operation, launch.shapes) for launch in launches]
    assert len({*words}) == len(words), "two launches cannot be told apart"
    for operation in {*OPERATIONS} - {*published.NEVER_CALLED}:
        tokens = {
            step
            for step in published.STEPS
            for call in published.published_calls(*step)
            if call.operation == operation
        }
        assert len(tokens) == len(published.STEPS), operation


def test_every_form_of_a_call_is_launched_with_its_tiles(published, served):
    """Each form of a matrix product in every step and in batch-invariant mode."""
    calls = list(published._calls())
    assert {form for _, form in served if form[0] not in LEFT_TO_TORCH} == {c.form for c in calls}
    for call in calls:
        if call.operation in published.MATRIX_OPERATIONS:
            same = [c for c in calls if c.form == call.form]
            # The first argument's rows are those of the step, of its requests or of its drafts.
            assert {1, 32, 64, 2048} <= {len(c.arguments[0]) for c in same}, call.form
    launched = [launch.shapes for launch in published.published_launches()]
    assert any(shapes.startswith("attn.wo_a: 64x32768") for shapes in launched)
    unscaled = [c for c in calls if c.operation == "fp8_linear" and c.arguments[1] is None]
    assert {c.module for c in unscaled} == {"layers.attn.wo_a"}
    assert unscaled[0].arguments[0].dtype == torch.bfloat16
