"""A block is settled with what the drafter had said of that block, never of another.

If a test fails, calibration is fitted to pairs that do not belong together, or the counters in
``/metrics`` drift from what was verified.
"""

from __future__ import annotations

import json

import pytest

from vllm_deepinfer.metrics.shared_counters import SharedCounters
from vllm_deepinfer.scheduler.confidences import DraftConfidence
from vllm_deepinfer.scheduler.drafting import DraftLedger, counter_names

NUM_DRAFTS = 3
FIRST = DraftConfidence((1.0, 0.0, -1.0), (0.75, 0.5, 0.25))
SECOND = DraftConfidence((2.0, 2.0, 2.0), (0.875, 0.875, 0.875))


@pytest.fixture
def counters(tmp_path):
    return SharedCounters(tmp_path / "counters", counter_names(NUM_DRAFTS), create=True)


@pytest.fixture
def records(tmp_path):
    return tmp_path / "records.jsonl"


@pytest.fixture
def ledger(counters, records):
    ledger = DraftLedger(counters, records)
    yield ledger
    ledger.close()


def values(counters, kind):
    return [counters[f"{kind}_{position}"] for position in range(NUM_DRAFTS)]


def written(records):
    return [json.loads(line) for line in records.read_text().splitlines()]


def test_a_step_settles_the_old_block_and_then_receives_the_new_one(ledger, counters, records):
    ledger.receive({"a": FIRST})
    assert ledger.confidence("a") == FIRST
    ledger.settle("a", 3, 1)
    assert ledger.confidence("a") is None
    ledger.receive({"a": SECOND})
    assert ledger.confidence("a") == SECOND
    ledger.settle("a", 3, 3)
    assert values(counters, "offered") == [2, 2, 2]
    assert values(counters, "accepted") == [2, 1, 1]
    assert values(counters, "confidence") == [1.625, 1.375, 1.125]
    assert [line["confidence_logits"] for line in written(records)] == [[1, 0, -1], [2, 2, 2]]
    assert [(line["offered"], line["accepted"]) for line in written(records)] == [(3, 1), (3, 3)]


def test_a_block_that_was_not_verified_is_replaced_by_the_next(ledger, records):
    ledger.receive({"a": FIRST})
    ledger.receive({"a": SECOND})
    ledger.settle("a", 3, 0)
    [line] = written(records)
    assert line["confidence_logits"] == [2, 2, 2]


def test_requests_do_not_mix(ledger, records):
    ledger.receive({"a": FIRST, "b": SECOND})
    ledger.settle("b", 2, 2)
    assert ledger.confidence("a") == FIRST
    ledger.settle("a", 1, 0)
    assert [(line["request_id"], line["offered"]) for line in written(records)] == [
        ("b", 2),
        ("a", 1),
    ]


def test_only_offered_drafts_count(ledger, counters):
    ledger.receive({"a": FIRST})
    ledger.settle("a", 1, 1)
    assert values(counters, "offered") == [1, 0, 0]
    assert values(counters, "accepted") == [1, 0, 0]
    assert values(counters, "confidence") == [0.75, 0, 0]


def test_drafts_without_confidence_count_and_are_not_recorded(ledger, counters, records):
    ledger.settle("a", 3, 2)
    assert values(counters, "offered") == [1, 1, 1]
    assert values(counters, "accepted") == [1, 1, 0]
    assert values(counters, "confidence") == [0, 0, 0]
    assert written(records) == []


def test_a_finished_request_leaves_nothing_to_its_successor(ledger, records):
    ledger.receive({"a": FIRST, "b": SECOND})
    ledger.forget(["a", "never seen"])
    assert ledger.confidence("a") is None
    assert ledger.confidence("b") == SECOND
    ledger.settle("a", 3, 3)
    assert written(records) == []


def test_records_are_appended_to(counters, records):
    for _ in range(2):
        ledger = DraftLedger(counters, records)
        ledger.receive({"a": FIRST})
        ledger.settle("a", 3, 1)
        ledger.close()
    assert len(written(records)) == 2


def test_closing_removes_the_counter_file(counters):
    DraftLedger(counters, None).close()
    assert not counters.path.exists()


def test_a_collapse_is_logged_with_numbers(counters, monkeypatch):
    from vllm_deepinfer.scheduler import drafting

    messages = []
    monkeypatch.setattr(
        drafting.logger, "warning", lambda text, *args: messages.append(text % args)
    )
    ledger = DraftLedger(counters, None)
    for accepted in [2] * 5120 + [0] * 1024:
        ledger.settle("a", 2, accepted)
    [message] = messages
    assert "from 100.0% to" in message
