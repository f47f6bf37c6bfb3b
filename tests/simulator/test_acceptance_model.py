"""Drafts survive as often as the model says, whoever verifies them. Else no plan means anything."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from vllm_deepinfer.simulator import AcceptanceModel, Simulation, SimulationError, scenario_from
from vllm_deepinfer.simulator.acceptance import PUBLISHED_SURVIVAL

LOAD = {"curve": "mi350x-v4", "ranks": 1, "sequences": 64, "trace": "closed", "concurrency": 64}


def test_mean_chances_are_the_given_ones():
    model = AcceptanceModel(request_spread=1.0, text_spread=0.8)
    assert model._weights @ model.true_rows == pytest.approx(PUBLISHED_SURVIVAL, abs=1e-6)
    assert (np.diff(model.true_rows, axis=1) < 0).all()


def test_the_published_facts_hold():
    assert PUBLISHED_SURVIVAL[0] > 0.7
    assert PUBLISHED_SURVIVAL[6] < 0.1


def test_verified_drafts_survive_as_often_as_given():
    scenario = scenario_from(
        LOAD
        | {
            "verification": "fixed",
            "drafts": 7,
            "request_spread": 0.0,  # else slow requests weigh more
            "steps": 1000,
            "output_tokens": 100_000,
            "chunk_tokens": 1 << 16,
        }
    )
    drafting = Simulation(scenario).run().summary()["drafting"]
    shares = np.array(drafting["accepted"]) / drafting["offered"]
    assert shares == pytest.approx(PUBLISHED_SURVIVAL, abs=0.01)
    expected = scenario.acceptance.tokens_per_block()
    assert drafting["tokens_per_block"] == pytest.approx(expected, rel=0.01)


def test_what_the_drafter_says_is_true_unless_told_otherwise():
    model = AcceptanceModel()
    assert (model.confidence_rows == model.true_rows).all()
    sure = replace(model, confidence_temperature=0.5)
    middle = len(model.true_rows) // 2
    assert sure.confidence_rows[middle, 0] > model.true_rows[middle, 0] > 0.5
    assert (replace(model, confidence_bias=1.0).confidence_rows >= model.true_rows).all()


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ({"survival": (0.5, 0.6)}, "draft 2 is 0.6"),
        ({"survival": (1.0,)}, "draft 1 is 1.0"),
        ({"survival": (float("nan"),)}, "draft 1 is nan"),
        ({"request_spread": -1.0}, "request_spread is -1.0"),
        ({"persistence": 1.5}, "persistence is 1.5"),
        ({"confidence_temperature": 0.0}, "confidence_temperature is 0.0"),
    ],
)
def test_impossible_models_are_refused_by_name(setting, named):
    with pytest.raises(SimulationError, match=named):
        AcceptanceModel(**setting)
