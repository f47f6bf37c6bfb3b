"""Machines cost what their file says, and built-in ones what was published. Else plans mislead."""

from __future__ import annotations

import json

import numpy as np
import pytest

from vllm_deepinfer.scheduler import cost_store
from vllm_deepinfer.scheduler.step_cost import StepCost, StepTimes
from vllm_deepinfer.simulator import MachineCurve, SimulationError
from vllm_deepinfer.simulator.curves import read_curve
from vllm_deepinfer.simulator.options import find_curve
from vllm_deepinfer.simulator.published import BUILT_IN, built_in_curve

SMALL = MachineCurve(
    name="small",
    provenance="made up",
    verify=((4, 10.0), (8, 12.0)),
    prefill=((0, 0.0), (100, 50.0)),
    sampler=((0, 1.0), (10, 2.0)),
    drafter=((0, 3.0),),
    context_us_per_token=10.0,
)


def test_decoding_climbs_stairs_and_goes_on_along_a_line():
    tokens = np.array([0, 1, 4, 5, 8, 10])
    assert SMALL.forward_ms(tokens, np.zeros(6)).tolist() == [10, 10, 10, 12, 12, 13]
    assert SMALL.forward_ms(np.array([1]), np.array([200])).tolist() == [12]


def test_rows_beside_prompts_add_what_they_cost_beyond_the_first():
    mixed = SMALL.mixed_ms(np.array([100, 100, 0, 2]), np.array([0, 8, 8, 8]), np.zeros(4))
    assert mixed.tolist() == [50, 52, 12, 12]


def test_a_file_gives_the_same_machine(tmp_path):
    path = tmp_path / "small.json"
    path.write_text(json.dumps(SMALL.as_dict()))
    assert read_curve(path) == SMALL
    assert find_curve(str(path)) == SMALL
    for name in BUILT_IN:
        path.write_text(json.dumps(built_in_curve(name).as_dict()))
        assert read_curve(path) == built_in_curve(name)


def test_step_costs_of_an_engine_are_a_machine(tmp_path):
    cost = StepCost([(4, 10.0), (8, 12.0)])
    for _ in range(20):
        cost.observe(StepTimes(4, 4, 100, 11.0, 0.5))
        cost.observe(StepTimes(8, 8, 100, 13.0, 0.5))
    path = tmp_path / "costs.json"
    cost_store.save(path, "key", cost)
    curve = read_curve(path)
    for tokens in (1, 4, 8, 20):
        found = curve.forward_ms(np.array([tokens]), np.array([0]))[0]
        assert found == pytest.approx(cost.forward_ms(tokens))
    assert curve.sampler_ms(np.array([4]))[0] == cost.sampler_ms(4) == 0.5


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"verify": [[4, 10], [4, 12]]}, "count is 4"),
        ({"verify": []}, r"verify is \[\]"),
        ({"verify": [[4, 0]]}, "time of 4 is 0"),
        ({"prefill": [[0, float("nan")]]}, "time of 0 is nan"),
        ({"prefill": [3]}, "has 3"),
        ({"unknown": 1}, "is not a curve"),
        ({"context_us_per_token": -1}, "context_us_per_token"),
    ],
)
def test_bad_files_are_refused_by_name(tmp_path, change, named):
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(SMALL.as_dict() | change))
    with pytest.raises(SimulationError, match=f"(?s)bad.json.*{named}"):
        read_curve(path)


def test_files_that_are_none_are_refused(tmp_path):
    path = tmp_path / "x.json"
    with pytest.raises(SimulationError, match="neither a file nor one of mi350x-v4, dp8-prefill"):
        find_curve(path)
    path.write_text("{")
    with pytest.raises(SimulationError, match="is not JSON"):
        find_curve(path)
    path.write_text('{"step_cost": {"format": 0}}')
    with pytest.raises(SimulationError, match="damaged step costs"):
        find_curve(path)
