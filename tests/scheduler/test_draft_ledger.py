"""A block is settled with what the drafter had said of that block, never of another.

If a test fails, calibration is fitted to pairs that do not belong together, or the counters in
``/metrics`` drift from what was verified.
"""

from __future__ import annotations

import json

import numpy as np
import pytest

from vllm_deepinfer.metrics.catalogue import draft_families
from vllm_deepinfer.metrics.shared_counters import SharedCounters
from vllm_deepinfer.scheduler.draft_table import UNKNOWN, DraftTable
from vllm_deepinfer.scheduler.drafting import DraftLedger
from vllm_deepinfer.scheduler.step_report import BlockConfidences

NUM_DRAFTS = 3
FIRST = ((1.0, 0.0, -1.0), (0.75, 0.5, 0.25))
SECOND = ((2.0, 2.0, 2.0), (0.875, 0.875, 0.875))


@pytest.fixture
def counters(tmp_path):
    names = [name for family in draft_families(NUM_DRAFTS) for name in family.counters()]
    return SharedCounters(tmp_path / "counters", names, create=True)


@pytest.fixture
def records(tmp_path):
    return tmp_path / "records.jsonl"


@pytest.fixture
def ledger(counters, records):
    ledger = DraftLedger(DraftTable(NUM_DRAFTS), counters, records)
    yield ledger
    ledger.close()


def receive(ledger, blocks, kept=None):
    logits, said = (np.array(rows, dtype=np.float32) for rows in zip(*blocks.values(), strict=True))
    confidences = BlockConfidences(list(blocks), logits, said)
    ledger.receive(confidences, kept or [True] * len(blocks))


def values(counters, kind):
    return [counters[f"draft_{kind}_{position}"] for position in range(NUM_DRAFTS)]


def written(records):
    return [json.loads(line) for line in records.read_text().splitlines()]


def test_a_step_settles_the_old_block_and_then_receives_the_new_one(ledger, counters, records):
    receive(ledger, {"a": FIRST})
    ledger.settle(["a"], [3], [1])
    receive(ledger, {"a": SECOND})
    ledger.settle(["a"], [3], [3])
    assert values(counters, "offered") == [2, 2, 2]
    assert values(counters, "accepted") == [2, 1, 1]
    assert values(counters, "confidence") == [1.625, 1.375, 1.125]
    assert [line["confidence_logits"] for line in written(records)] == [[1, 0, -1], [2, 2, 2]]
    assert [(line["offered"], line["accepted"]) for line in written(records)] == [(3, 1), (3, 3)]


def test_a_block_is_settled_once(ledger, counters, records):
    receive(ledger, {"a": FIRST})
    ledger.settle(["a"], [3], [1])
    ledger.settle(["a"], [3], [2])
    assert values(counters, "confidence") == [0.75, 0.5, 0.25]
    assert len(written(records)) == 1


def test_a_block_that_was_not_verified_is_replaced_by_the_next(ledger, records):
    receive(ledger, {"a": FIRST})
    receive(ledger, {"a": SECOND})
    ledger.settle(["a"], [3], [0])
    [line] = written(records)
    assert line["confidence_logits"] == [2, 2, 2]


def test_requests_do_not_mix(ledger, records):
    receive(ledger, {"a": FIRST, "b": SECOND})
    ledger.settle(["b"], [2], [2])
    ledger.settle(["a"], [1], [0])
    assert [(line["request_id"], line["offered"]) for line in written(records)] == [
        ("b", 2),
        ("a", 1),
    ]
    assert [line["confidence_logits"][0] for line in written(records)] == [2, 1]


def test_only_offered_drafts_count(ledger, counters):
    receive(ledger, {"a": FIRST})
    ledger.settle(["a"], [1], [1])
    assert values(counters, "offered") == [1, 0, 0]
    assert values(counters, "accepted") == [1, 0, 0]
    assert values(counters, "confidence") == [0.75, 0, 0]


def test_drafts_without_confidence_count_and_are_not_recorded(ledger, counters, records):
    ledger.settle(["a"], [3], [2])
    assert values(counters, "offered") == [1, 1, 1]
    assert values(counters, "accepted") == [1, 1, 0]
    assert values(counters, "confidence") == [0, 0, 0]
    assert written(records) == []


def test_a_finished_request_leaves_nothing_to_its_successor(ledger, records):
    receive(ledger, {"a": FIRST, "b": SECOND})
    ledger.table.forget(["a", "never seen"])
    receive(ledger, {"c": SECOND})
    assert ledger.table.rows(["a"]).tolist() == [UNKNOWN]
    assert ledger.table.num_rounds[ledger.table.rows(["b", "c"])].tolist() == [1, 1]
    ledger.settle(["a"], [3], [3])
    assert written(records) == []


def test_drafts_of_unfinished_prompts_are_no_round(ledger):
    receive(ledger, {"a": FIRST, "b": SECOND}, kept=[False, True])
    assert ledger.table.rows(["a"]).tolist() == [UNKNOWN]
    [row] = ledger.table.rows(["b"])
    assert ledger.table.newest_rates[row].tolist() == np.cumprod(np.float32(SECOND[1])).tolist()


def test_the_last_two_rounds_are_kept_apart_for_any_number_of_requests(ledger):
    """The table grows; what it held before stays where its request finds it."""
    names = [str(number) for number in range(300)]
    for scale in (1.0, 0.5):
        said = dict.fromkeys(names, ((0, 0, 0), (scale, scale, scale)))
        receive(ledger, said)
    rows = ledger.table.rows(names)
    assert len(set(rows.tolist())) == 300 and UNKNOWN not in rows
    assert (ledger.table.newest_rates[rows] == [0.5, 0.25, 0.125]).all()
    assert (ledger.table.previous_rates[rows] == 1).all()
    assert (ledger.table.num_rounds[rows] == 2).all()
    assert ledger.table.num_rounds[UNKNOWN] == 0


def test_records_are_appended_to(counters, records):
    for _ in range(2):
        ledger = DraftLedger(DraftTable(NUM_DRAFTS), counters, records)
        receive(ledger, {"a": FIRST})
        ledger.settle(["a"], [3], [1])
        ledger.close()
    assert len(written(records)) == 2


def test_a_collapse_is_logged_with_numbers_whatever_is_offered(counters, monkeypatch):
    """How many drafts are verified may change from step to step; that alone is no collapse."""
    from vllm_deepinfer.scheduler import drafting

    messages = []
    monkeypatch.setattr(
        drafting.logger, "warning", lambda text, *args: messages.append(text % args)
    )
    ledger = DraftLedger(DraftTable(NUM_DRAFTS), counters, None)
    for step in range(5120):
        ledger.settle(["a"], [1 if step < 2560 else 3], [1])
    assert messages == []
    for _ in range(1024):
        ledger.settle(["a"], [3], [0])
    [message] = messages
    assert "from 100.0% to" in message


def test_mean_survival_is_of_drafts_that_could_survive(ledger):
    """A draft that was not offered says nothing of its position."""
    for _ in range(4000):
        ledger.settle(["a", "b"], [1, 3], [1, 2])
    assert ledger.mean_survival.rates() == pytest.approx([1, 1, 0], abs=0.01)
