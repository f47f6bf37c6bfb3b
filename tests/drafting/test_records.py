"""Records of draft blocks are read exactly or refused by line.

Claim: numbers arrive as written; a line that is not a record of the documented form stops the
reading with its number, what is wrong and what is expected. If this breaks, a calibration is fitted
on something else than what was recorded.
Run: python -m pytest tests/drafting/test_records.py (about 1 s).
"""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_deepinfer.drafting.records import EXPECTED, RecordError, read_records

GOOD = b'{"confidence_logits": [0.5, -1], "offered": 2, "accepted": 1, "request_id": "a"}\n'


@st.composite
def blocks(draw):
    size = draw(st.integers(1, 6))
    block = st.tuples(
        st.lists(st.floats(-1e6, 1e6) | st.integers(-60, 60), min_size=size, max_size=size),
        st.integers(0, size).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))),
    )
    return draw(st.lists(block, min_size=1, max_size=20))


@settings(max_examples=50, deadline=None)
@given(blocks())
def test_numbers_arrive_as_written(content):
    lines = (
        json.dumps({"accepted": m, "confidence_logits": z, "offered": n}).encode() + b"\n"
        for z, (n, m) in content
    )
    records = read_records(lines)
    assert len(records) == len(content)
    assert records.logits.tolist() == [z for z, _ in content]
    assert list(zip(records.offered, records.accepted, strict=True)) == [c for _, c in content]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"\n", "not JSON"),
        (GOOD[:30], "not JSON"),
        (b"\xff\n", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[1]", "a JSON list, not an object"),
        (b"{}", "missing ['accepted', 'confidence_logits', 'offered']"),
        (GOOD.replace(b"request_id", b"request"), "unknown ['request']"),
        (GOOD.replace(b'"a"', b"7"), "request_id=7 is not a string"),
        (GOOD.replace(b"[0.5, -1]", b"0.5"), "confidence_logits=0.5 is not a list"),
        (GOOD.replace(b"[0.5, -1]", b"[]"), "confidence_logits=[] is not a list"),
        (GOOD.replace(b"-1]", b"NaN]"), "confidence_logits[1]=nan is not a number"),
        (GOOD.replace(b"-1]", b"-Infinity]"), "confidence_logits[1]=-inf is not a number"),
        (GOOD.replace(b"-1]", b"1" + b"0" * 400 + b"]"), "confidence_logits[1]=1000"),
        (GOOD.replace(b"-1]", b"true]"), "confidence_logits[1]=True is not a number"),
        (GOOD.replace(b"-1]", b"null]"), "confidence_logits[1]=None is not a number"),
        (GOOD.replace(b"-1]", b"-1, 0]"), "3 confidence_logits where the first line has 2"),
        (GOOD.replace(b'"offered": 2', b'"offered": 3'), "offered=3 is not an integer from 0 to 2"),
        (GOOD.replace(b'"offered": 2', b'"offered": "2"'), "offered='2' is not an integer"),
        (GOOD.replace(b'"accepted": 1', b'"accepted": 3'), "accepted=3 is not an integer from 0"),
        (GOOD.replace(b'"accepted": 1', b'"accepted": -1'), "accepted=-1 is not an integer"),
        (GOOD.replace(b'"accepted": 1', b'"accepted": true'), "accepted=True is not an integer"),
        (GOOD.replace(b'"accepted": 1', b'"accepted": 1.0'), "accepted=1.0 is not an integer"),
    ],
)
def test_a_bad_line_is_named_with_what_is_expected(line, words):
    with pytest.raises(RecordError) as error:
        read_records([GOOD, GOOD, line, GOOD])
    assert str(error.value).startswith("line 3: ")
    assert words in str(error.value)
    assert EXPECTED in str(error.value)


def test_reading_stops_at_the_bad_line():
    def lines():
        yield GOOD
        yield b"x"
        raise AssertionError("read on")

    with pytest.raises(RecordError, match="line 2"):
        read_records(lines())


def test_an_empty_file_is_refused():
    with pytest.raises(RecordError, match="no lines"):
        read_records([])
