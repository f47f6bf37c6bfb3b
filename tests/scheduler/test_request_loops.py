"""Loops over requests give the same in C++ and in Python, and settle what vLLM counts.

If this fails, plans, confidences or counters depend on whether a compiler was there, or drafts are
counted that vLLM does not count.
"""

from __future__ import annotations

import copy
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vllm import SamplingParams
from vllm.v1.core.sched.output import CachedRequestData, SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

from vllm_deepinfer.scheduler import request_loops, request_loops_reference

K = 3
MANY_DRAFTS = 64
STATUSES = (
    RequestStatus.RUNNING,
    RequestStatus.RUNNING,
    RequestStatus.PREEMPTED,
    RequestStatus.FINISHED_ABORTED,
)
few = st.integers(0, 3)


@st.composite
def requests_of_a_step(draw):
    """Running requests as vLLM has them, odd ones included; ids are their places."""
    made = []
    for number in range(draw(st.integers(0, 6))):
        request = Request(
            str(number),
            list(range(1, 2 + draw(few))),
            SamplingParams(max_tokens=draw(st.integers(1, 9))),
            None,
        )
        request.append_output_token_ids(list(range(draw(st.integers(0, 9)))))
        request.num_computed_tokens = draw(st.integers(0, 1000))
        request.num_in_flight_tokens = draw(few)
        request.is_prefill_chunk = draw(st.booleans())
        request.spec_token_ids = [7] * draw(st.integers(0, K))
        request.status = draw(st.sampled_from(STATUSES))
        request.num_stale_output_tokens = draw(st.sampled_from((0, 0, 2)))
        request.drop_stale_output = draw(st.booleans())
        made.append(request)
    return made


def table_of(seed, num_rows=8):
    """Columns of a ``DraftTable`` and its rows by request; some requests never drafted."""
    rng = np.random.default_rng(seed)
    names = rng.permutation(6)[: rng.integers(0, 7)]
    rows = {str(name): place for place, name in enumerate(names.tolist(), 1)}
    columns = {
        name: rng.random((num_rows, K), dtype=np.float32)
        for name in ("newest", "previous", "logits", "probabilities")
    }
    columns["num_rounds"] = rng.integers(0, 3, num_rows)
    columns["is_open"] = rng.random(num_rows) < 0.6
    for column in columns.values():
        column[0] = 0
    return rows, list(range(num_rows - 1, len(rows), -1)), SimpleNamespace(**columns)


def in_both(call):
    """What ``call`` gives on the extension and on its twin."""
    extension = request_loops.backend()
    assert extension.__name__ == "vllm_deepinfer._scheduling", "the extension was not built"
    return call(extension), call(request_loops_reference)


def assert_same(left, right):
    assert type(left) is type(right)
    if isinstance(left, np.ndarray):
        assert left.dtype == right.dtype and left.tobytes() == right.tobytes()
    elif isinstance(left, (list, tuple)):
        assert len(left) == len(right)
        for ours, theirs in zip(left, right, strict=True):
            assert_same(ours, theirs)
    else:
        assert left == right


@given(requests_of_a_step(), st.integers(0, 999), st.booleans(), st.booleans(), st.integers(5, 30))
def test_collected_requests_are_the_same(requests, seed, is_async, is_compatible, most_tokens):
    rows, _, table = table_of(seed)
    reached = np.random.default_rng(seed).uniform(16, 1e5, K)
    survived = reached * np.random.default_rng(seed + 1).random(K)

    def collect(loops):
        limits = np.zeros(6, dtype=np.int32)
        budget, ranking = np.zeros((2, 6, K), dtype=np.float32)
        found = loops.collect(
            requests,
            is_async,
            most_tokens,
            rows,
            table.newest,
            table.previous,
            table.num_rounds,
            None if is_compatible else survived,
            None if is_compatible else reached,
            limits,
            budget,
            ranking,
        )
        assert found[1:] == loops.survey(requests)
        return found, limits, budget, ranking

    ours, theirs = in_both(collect)
    assert_same(ours, theirs)
    assert all(left is right for left, right in zip(ours[0][0], theirs[0][0], strict=True))


@given(requests_of_a_step(), st.data())
def test_trimmed_drafts_are_the_same_and_no_shared_list_changes(requests, data):
    shared = [-1] * K
    for request in requests[::2]:
        request.spec_token_ids = shared
    kept = [data.draw(st.integers(0, K)) for _ in requests]
    before = [list(request.spec_token_ids) for request in requests]

    def trim(loops):
        copies = [copy.copy(request) for request in requests]
        loops.trim(copies, np.array(kept, dtype=np.int32))
        return [request.spec_token_ids for request in copies]

    ours, theirs = in_both(trim)
    assert ours == theirs == [b[:k] for b, k in zip(before, kept, strict=True)]
    assert shared == [-1] * K


@st.composite
def steps(draw):
    """Requests, those still known, and what a step scheduled and sampled for them."""
    requests = draw(requests_of_a_step())
    known = {r.request_id: r for r in requests if draw(st.integers(0, 4))}
    drafts = {r.request_id: r.spec_token_ids for r in requests if draw(st.integers(0, 4))}
    sampled = [[5] * draw(st.integers(0, len(r.spec_token_ids) + 1)) for r in requests]
    if not draw(st.integers(0, 5)):
        sampled = []
    invalid = draw(st.sampled_from((None, {}, "some")))
    if invalid == "some":
        # vLLM offers no fewer drafts than it then accepts: the grammar cuts them first.
        invalid = {
            name: draw(st.integers(0, max(0, len(block) - len(sampled[int(name)]) + 1)))
            for name, block in drafts.items()
            if sampled and block
        }
    return requests, known, drafts, invalid, sampled


@given(steps(), st.sampled_from((1, 1, 0)))
@settings(max_examples=200, deadline=None)
def test_verified_blocks_are_those_vllm_counts(step, num_sampled):
    requests, known, drafts, invalid, sampled = step
    places = {request.request_id: place for place, request in enumerate(requests)}

    def verified(loops):
        return loops.verified(
            drafts, invalid, known, sampled, places, num_sampled, RequestStatus.PREEMPTED
        )

    ours, theirs = in_both(verified)
    assert_same(ours, theirs)
    assert list(zip(*ours, strict=True)) == counted_by_vllm(step, places, num_sampled)


def counted_by_vllm(step, places, num_sampled):
    """Blocks that vLLM's ``update_from_output`` hands to its statistics."""
    requests, known, drafts, invalid, sampled = step
    counted = []

    def count(stats, num_draft_tokens, num_accepted_tokens, num_invalid_spec_tokens, request_id):
        if num_draft_tokens:
            excess = (num_invalid_spec_tokens or {}).get(request_id, 0)
            counted.append((request_id, num_draft_tokens - excess, num_accepted_tokens))

    scheduled = {request.request_id: len(request.spec_token_ids) + 1 for request in requests}
    for request in known.values():
        request.num_in_flight_tokens += MANY_DRAFTS
        if request.num_stale_output_tokens:
            request.num_stale_output_tokens += MANY_DRAFTS
    scheduler = SimpleNamespace(
        **dict.fromkeys(
            (
                "defer_block_free",
                "perf_metrics",
                "aux_output_connector",
                "return_sampling_mask",
                "is_mm_encoder_only",
                "ec_connector",
                "connector",
                "include_finished_set",
                "kv_event_publisher",
                "finished_req_ids_dict",
            )
        ),
        requests=known,
        num_sampled_tokens_per_step=num_sampled,
        make_spec_decoding_stats=count,
        _update_request_with_output=lambda request, tokens, is_stale: (tokens, False),
        structured_output_manager=SimpleNamespace(accept_tokens=lambda request, tokens: True),
        kv_cache_manager=SimpleNamespace(
            estimate_cached_tokens=lambda request: 0, take_events=lambda: None
        ),
        grammar_compile_error_reqs=set(),
        encoder_cache_mismatch_reqs=set(),
        make_stats=lambda *args, **kwargs: None,
    )
    output = SchedulerOutput(
        scheduled_new_reqs=[],
        scheduled_cached_reqs=CachedRequestData.make_empty(),
        num_scheduled_tokens=scheduled,
        total_num_scheduled_tokens=sum(scheduled.values()),
        scheduled_spec_decode_tokens=drafts,
        scheduled_encoder_inputs={},
        num_common_prefix_blocks=[],
        finished_req_ids=set(),
        free_encoder_mm_hashes=[],
        num_invalid_spec_tokens=invalid,
    )
    Scheduler.update_from_output(
        scheduler,
        output,
        ModelRunnerOutput(list(places), places, sampled_token_ids=sampled),
    )
    return counted


def totals(seed):
    return [np.random.default_rng(seed + index).random(K) * 100 for index in range(5)]


@given(st.integers(0, 999), st.lists(st.tuples(st.integers(0, K), few), max_size=6))
def test_settled_blocks_are_counted_the_same(seed, blocks):
    names = [str(name) for name in np.random.default_rng(seed).permutation(6)[: len(blocks)]]
    offered = [length for length, _ in blocks]
    accepted = [min(block) for block in blocks]

    def settle(loops):
        rows, _, table = table_of(seed)
        sums = totals(seed)
        first = loops.settle(
            names, offered, accepted, rows, table.probabilities, table.is_open, *sums
        )
        return first, sums, table.is_open

    ours, theirs = in_both(settle)
    assert_same(ours, theirs)


@given(st.integers(0, 999), st.lists(st.booleans(), max_size=6), st.booleans())
def test_received_blocks_are_stored_the_same(seed, is_kept, is_corrected):
    rng = np.random.default_rng(seed)
    names = [str(name) for name in rng.permutation(6)[: len(is_kept)]]
    logits, said = rng.random((2, len(names), K), dtype=np.float32)
    said[said < 0.1], said[said > 0.9] = 0, 1
    corrected = rng.random((K, 9), dtype=np.float32) if is_corrected else None

    def receive(loops):
        rows, free, table = table_of(seed)
        loops.receive(names, is_kept, logits, said, corrected, rows, free, *columns_of(table))
        return list(rows.items()), free, list(columns_of(table))

    ours, theirs = in_both(receive)
    assert_same(ours, theirs)


def columns_of(table):
    names = ("newest", "previous", "logits", "probabilities", "num_rounds", "is_open")
    return [getattr(table, name) for name in names]


def blocks_of(names):
    return names, [True] * len(names), *np.zeros((2, len(names), K), dtype=np.float32)


def drafting_request():
    request = Request("0", [1], SamplingParams(max_tokens=9), None)
    request.spec_token_ids = [7] * K
    return request


REFUSED = {
    "a trim of more requests than lengths": lambda loops, rows, free, table: loops.trim(
        [drafting_request()], np.zeros(2, dtype=np.int32)
    ),
    "no room": lambda loops, rows, free, table: loops.collect(
        [drafting_request()] * 2,
        False,
        99,
        rows,
        table.newest,
        table.previous,
        table.num_rounds,
        None,
        None,
        np.zeros(1, dtype=np.int32),
        *np.zeros((2, 1, K), dtype=np.float32),
    ),
    "more survived than were offered": lambda loops, rows, free, table: loops.settle(
        ["0"], [1], [2], rows, table.probabilities, table.is_open, *totals(0)
    ),
    "more were offered than there are": lambda loops, rows, free, table: loops.settle(
        ["0"], [K + 1], [0], rows, table.probabilities, table.is_open, *totals(0)
    ),
    "blocks without a length": lambda loops, rows, free, table: loops.settle(
        ["0", "1"], [1, 1], [0], rows, table.probabilities, table.is_open, *totals(0)
    ),
    "no free row": lambda loops, rows, free, table: loops.receive(
        *blocks_of(["new"]), None, rows, [], *columns_of(table)
    ),
    "a chance that is none": lambda loops, rows, free, table: loops.receive(
        ["0"],
        [True],
        *np.full((2, 1, K), 1.5, dtype=np.float32),
        np.zeros((K, 9), dtype=np.float32),
        rows,
        free,
        *columns_of(table),
    ),
    "blocks of which some may be noise": lambda loops, rows, free, table: loops.receive(
        ["0"], [], *np.zeros((2, 1, K), dtype=np.float32), None, rows, free, *columns_of(table)
    ),
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("loops", [request_loops.backend(), request_loops_reference])
def test_what_does_not_fit_is_refused(case, loops):
    with pytest.raises(ValueError):
        REFUSED[case](loops, *table_of(0))


def test_a_place_that_no_request_has_is_refused():
    for loops in (request_loops.backend(), request_loops_reference):
        with pytest.raises(KeyError, match="0"):
            known = {"0": drafting_request()}
            loops.verified({"0": [7]}, None, known, [[1]], {}, 1, RequestStatus.PREEMPTED)
