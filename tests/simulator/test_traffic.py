"""Requests come as described and each exactly once. Else every rate in a result is wrong."""

from __future__ import annotations

import json

import numpy as np
import pytest

from vllm_deepinfer.simulator import Arrival, SimulationError, Traffic
from vllm_deepinfer.simulator.traffic import Requests, read_arrivals


def taken(requests: Requests, until_ms: float, every_ms: float) -> list[int]:
    found: list[int] = []
    for now_ms in np.arange(0, until_ms, every_ms):
        found += requests.due(now_ms)
    return found


@pytest.mark.parametrize("kind", ["poisson", "bursts"])
def test_open_traffic_has_its_rate_and_lengths(kind):
    traffic = Traffic(kind, 50.0, burst_size=8, prompt_tokens=100, length_spread=0.5)
    requests = Requests(traffic, seed=1)
    found = taken(requests, 200_000, 37)
    assert found == list(range(len(found)))
    count = 8 if kind == "bursts" else 1
    assert len(found) == pytest.approx(10_000, abs=5 * np.sqrt(10_000 * count))
    gaps = np.diff(requests.arrival_ms[: len(found)])
    assert np.mean(gaps == 0) == pytest.approx(1 - 1 / count, abs=0.01)
    lengths = requests.prompt_tokens[: len(found)]
    assert (lengths.min(), lengths.max()) == (50, 150)
    assert lengths.mean() == pytest.approx(100, rel=0.02)


def test_how_often_one_looks_changes_nothing():
    one, two = (Requests(Traffic(rate_per_s=20.0), seed=4) for _ in range(2))
    taken(one, 50_000, 1000)
    taken(two, 50_000, 9)
    assert one.arrival_ms[:900].tolist() == two.arrival_ms[:900].tolist()


def test_closed_traffic_replaces_what_ends():
    requests = Requests(Traffic("closed", concurrency=5), seed=0)
    assert list(requests.due(0.0)) == [0, 1, 2, 3, 4]
    assert list(requests.due(10.0)) == []
    requests.ended(2)
    assert list(requests.due(20.0)) == [5, 6]
    assert requests.arrival_ms[:7].tolist() == [0, 0, 0, 0, 0, 20, 20]


def test_a_recording_is_replayed(tmp_path):
    path = tmp_path / "trace.jsonl"
    arrivals = [Arrival(0.0, 5, 3), Arrival(2.5, 7, 1, rank=1)]
    lines = [json.dumps(dict(zip(Arrival._fields, entry, strict=True))) for entry in arrivals]
    path.write_text("\n".join(lines) + "\n\n")
    requests = Requests(Traffic("recorded", recorded=read_arrivals(path)), seed=0)
    assert list(requests.due(2.0)) == [0]
    assert requests.next_ms() == 2.5
    assert list(requests.due(9.0)) == [1]
    assert requests.next_ms() == np.inf
    assert requests.rank.tolist() == [-1, 1]


@pytest.mark.parametrize("line", ["{", '{"arrival_ms": 1}', "[]", '{"arrival": 1}'])
def test_bad_recordings_are_refused_by_line(tmp_path, line):
    path = tmp_path / "trace.jsonl"
    path.write_text('{"arrival_ms": 0, "prompt_tokens": 1, "output_tokens": 1}\n' + line)
    with pytest.raises(SimulationError, match="trace.jsonl, line 2"):
        read_arrivals(path)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"kind": "steady"}, "traffic is 'steady'"),
        ({"rate_per_s": 0.0}, "rate_per_s is 0.0"),
        ({"output_tokens": 0}, "output_tokens is 0"),
        ({"kind": "recorded"}, "at least one arrival"),
        ({"kind": "recorded", "recorded": (Arrival(5, 1, 1), Arrival(4, 1, 1))}, "arrival_ms is 4"),
        ({"kind": "recorded", "recorded": (Arrival(5, 0, 1),)}, "prompt_tokens of an arrival is 0"),
    ],
)
def test_impossible_traffic_is_refused_by_name(settings, named):
    with pytest.raises(SimulationError, match=named):
        Traffic(**settings)
