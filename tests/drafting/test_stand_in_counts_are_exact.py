"""What the scheduler counts, records and reports of drafts is what happened to them.

The stand-in's drafts and confidences are functions of position and token, so every count is known
by replay. If this breaks, acceptance in ``/metrics``, calibration or the collapse warning is wrong.
Takes about 30 s.
"""

from __future__ import annotations

import json
import logging

import numpy as np
import pytest
from drafting.stand_in_engine import (
    behave,
    counted,
    counted_since,
    expected,
    generate,
    num_faults,
    prompt,
    replay,
    sampling,
    stand_in_engine,
)
from in_process import counter, scheduler
from vllm import TokensPrompt

from vllm_deepinfer.cli import main as command
from vllm_deepinfer.drafting.calibration import load_calibration
from vllm_deepinfer.drafting.checkpoint_identity import checkpoint_identity
from vllm_deepinfer.metrics.catalogue import draft_families
from vllm_deepinfer.metrics.shared_counters import SharedCounters, counter_file
from vllm_deepinfer.scheduler import drafting
from vllm_deepinfer.scheduler.acceptance import BASELINE_DRAFTS, RECENT_DRAFTS
from vllm_deepinfer.testing.stand_in import Settings, drafts, make_stand_in

FALLING = {
    "acceptance": (0.9, 0.8, 0.7, 0.6, 0.5),
    "confidence_spread": 0.8,
    "confidence_scale": 2.0,
}
PROMPTS = [prompt(20 + salt, salt) for salt in range(8)]
NUM_TOKENS = 120


def read(llm, num_drafts=5):
    return counted(scheduler(llm).parts.counters, num_drafts)


def assert_equal(found, known, num_drafts):
    assert found.offered == known.offered[:num_drafts]
    assert found.accepted == known.accepted[:num_drafts]
    assert found.confidence == pytest.approx(known.confidence[:num_drafts], rel=1e-4)


def said_of(llm, request_id):
    """Confidence logits of a request's block that is not verified yet."""
    table = scheduler(llm).parts.ledger.table
    [row] = table.rows([request_id])
    return table.logits[row].tolist() if table.is_open[row] else None


@pytest.mark.parametrize(("num_drafts", "async_scheduling"), [(5, True), (5, False), (3, True)])
@pytest.mark.parametrize("settings", [FALLING, {"confidence": 0.25}, {"acceptance": (0.0,) * 5}])
def test_counters_are_those_of_the_known_pattern(stand_ins, num_drafts, async_scheduling, settings):
    llm = stand_ins(num_drafts, async_scheduling=async_scheduling)
    made, before = behave(llm, **settings), read(llm, num_drafts)
    assert generate(llm, PROMPTS, sampling(NUM_TOKENS)) == expected(PROMPTS, NUM_TOKENS)
    known = replay(made, PROMPTS, NUM_TOKENS, num_drafts)
    assert_equal(counted_since(before, read(llm, num_drafts)), known, num_drafts)


@pytest.mark.parametrize("async_scheduling", [True, False])
def test_each_block_has_its_own_confidences_in_the_scheduler(stand_ins, async_scheduling):
    """After every step, each request's confidences are those of the block after its last token."""
    llm = stand_ins(5, async_scheduling=async_scheduling)
    made, engine, seen = behave(llm, **FALLING), llm.llm_engine, 0
    for index, tokens in enumerate(PROMPTS):
        engine.add_request(str(index), TokensPrompt(prompt_token_ids=tokens), sampling(40))
    while engine.has_unfinished_requests():
        engine.step()
        for request in scheduler(llm).running:
            said = said_of(llm, request.request_id)
            if said is None or request.num_output_tokens == 0:
                continue
            newest = np.array([request.num_tokens - 1])
            block = drafts(made, newest, np.array([request.all_token_ids[-1]]), 5)
            assert said == block.logits[0].tolist()
            seen += 1
    assert seen > 8 * 5


@pytest.mark.parametrize("async_scheduling", [True, False])
@pytest.mark.parametrize("options", [{"num_gpu_blocks_override": 24}, {}], ids=["tight", "roomy"])
def test_a_verified_block_is_settled_with_its_own_confidences(
    stand_ins, monkeypatch, async_scheduling, options
):
    """Also when the request was preempted, or others were aborted, since it was drafted.

    What is settled before vLLM's own update is what that then counts.
    """
    llm = stand_ins(5, async_scheduling=async_scheduling, max_model_len=256, **options)
    made, target = behave(llm, **FALLING), scheduler(llm)
    before, settled, due = counter(llm, "vllm:num_preemptions"), [], {}
    count, settle = target.make_spec_decoding_stats, target.parts.ledger.settle

    def checked(request_ids, offered, accepted):
        for request_id, length, survived in zip(request_ids, offered, accepted, strict=True):
            request = target.requests[request_id]
            newest = np.array([request.num_tokens - 1])
            block = drafts(made, newest, np.array([request.all_token_ids[-1]]), 5)
            is_own = said_of(llm, request_id) == block.logits[0].tolist()
            right = int(block.right[0].cumprod().sum())
            settled.append(is_own and length == 5 and survived == right)
            due[request_id] = length, survived
        settle(request_ids, offered, accepted)

    def counting(stats, num_draft_tokens, num_accepted_tokens, request_id, **kwargs):
        assert due.pop(request_id) == (num_draft_tokens, num_accepted_tokens)
        return count(
            stats,
            num_draft_tokens=num_draft_tokens,
            num_accepted_tokens=num_accepted_tokens,
            request_id=request_id,
            **kwargs,
        )

    monkeypatch.setattr(target, "make_spec_decoding_stats", counting)
    monkeypatch.setattr(target.parts.ledger, "settle", checked)
    engine, steps = llm.llm_engine, 0
    for index in range(14):
        tokens = TokensPrompt(prompt_token_ids=prompt(60 + index, index))
        engine.add_request(str(index), tokens, sampling(120))
    while engine.has_unfinished_requests():
        engine.step()
        assert not due
        steps += 1
        if steps in (4, 9, 30):
            engine.abort_request([str(steps % 14)])
    assert len(settled) > 200 and all(settled)
    assert not options or counter(llm, "vllm:num_preemptions") - before > 3


def test_confidences_and_counts_cross_processes(tmp_path, monkeypatch):
    """From the worker's process to the scheduler's, and from there to this one."""
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "1")
    make_stand_in(tmp_path, **FALLING)
    with stand_in_engine(tmp_path, 5, distributed_executor_backend="mp") as llm:
        assert generate(llm, PROMPTS, sampling(NUM_TOKENS)) == expected(PROMPTS, NUM_TOKENS)
        path = counter_file(llm.llm_engine.vllm_config.instance_id, 0)
        names = [name for family in draft_families(5) for name in family.counters()]
        counters = SharedCounters(path, names, create=False)
        known = replay(Settings(**FALLING), PROMPTS, NUM_TOKENS, 5)
        assert_equal(counted(counters, 5), known, 5)


def test_records_are_what_calibrate_needs(stand_ins, tmp_path):
    """Recorded blocks, fitted, give back the temperature the confidences were distorted with."""
    file, output = tmp_path / "records.jsonl", tmp_path / "calibration.json"
    llm = stand_ins(5, FALLING, additional_config={"deepinfer": {"draft_records": str(file)}})
    prompts = [prompt(30, salt) for salt in range(64)]
    generate(llm, prompts, sampling(200))
    known = replay(Settings(**FALLING), prompts, 200, 5)
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    assert len(lines) == known.offered[0]
    assert sum(line["accepted"] for line in lines) == sum(known.accepted)
    assert all(line["offered"] == 5 for line in lines)
    folder = llm.llm_engine.vllm_config.model_config.model
    argv = ["calibrate", str(file), "--checkpoint", folder, "--output", str(output)]
    assert command(argv) == 0
    fitted = load_calibration(output, checkpoint_identity(folder), 5)
    assert fitted.temperatures == pytest.approx((2.0,) * 5, rel=0.35)


@pytest.fixture
def warnings():
    """Warnings of the ledger from now on."""
    found: list[str] = []

    class Collector(logging.Handler):
        def emit(self, record):
            found.append(record.getMessage())

    collector = Collector(logging.WARNING)
    drafting.logger.addHandler(collector)
    yield found
    drafting.logger.removeHandler(collector)


def test_acceptance_that_collapses_is_reported_once_and_steady_acceptance_never(
    stand_ins, warnings
):
    """The schedule: nearly all drafts are right up to position 300, few after it."""
    settings = {"acceptance": [(0, (0.9,) * 5), (300, (0.2,) * 5)]}
    llm = stand_ins(5, settings)
    prompts = [prompt(40, salt) for salt in range(32)]
    assert generate(llm, prompts, sampling(250)) == expected(prompts, 250)
    assert sum(read(llm).offered) > BASELINE_DRAFTS + 4 * RECENT_DRAFTS
    assert warnings == []
    assert generate(llm, prompts, sampling(360)) == expected(prompts, 360)
    assert len(warnings) == 1
    assert "Draft acceptance fell from" in warnings[0] and "--speculative-config" in warnings[0]
    assert num_faults(llm) == 0
