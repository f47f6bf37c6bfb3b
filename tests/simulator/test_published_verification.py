"""On the machine of vllm#52362, verification that adapts beats both static choices at every load
and comes within 2 % of one who knows everything. There, upstream's lost 5 to 8 % at light load.

Covers the fit of that machine too: its static rows come out of the simulation as published. Takes
20 s on a quiet core.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from vllm_deepinfer.simulator import Scenario, Simulation, Traffic
from vllm_deepinfer.simulator.published import (
    ADAPTIVE_TOKENS_PER_S,
    CONCURRENCY,
    CONCURRENCY_OUTPUT_TOKENS,
    CONCURRENCY_PROMPT_TOKENS,
    NO_DRAFTS_TOKENS_PER_S,
    NUM_DRAFTS,
    SEVEN_DRAFTS_TOKENS_PER_S,
    mi350x,
)

BLOCKS = 16_000  # per run: luck then moves a throughput by half a percent
SEEDS = {4: 4, 8: 2}  # where few requests make luck count, the mean of some runs


def scenario(concurrency: int, verification: str, **changes) -> Scenario:
    settings = {
        "ranks": 1,
        "sequences": concurrency,
        "chunk_tokens": 1 << 17,
        "curve": mi350x(),
        "traffic": Traffic(
            "closed",
            concurrency=concurrency,
            prompt_tokens=CONCURRENCY_PROMPT_TOKENS,
            output_tokens=CONCURRENCY_OUTPUT_TOKENS,
            length_spread=0.5,
        ),
        "verification": verification,
        "drafts": NUM_DRAFTS,
        "steps": 500 if verification == "none" else max(500, BLOCKS // concurrency),
    }
    return Scenario(**(settings | changes))


def tokens_per_s(concurrency: int, verification: str, **changes) -> float:
    runs = [
        Simulation(scenario(concurrency, verification, seed=seed, **changes)).run().summary()
        for seed in range(1 if verification == "none" else SEEDS.get(concurrency, 1))
    ]
    return float(np.mean([summary["output_tokens_per_s"] for summary in runs]))


@pytest.mark.parametrize("column", range(len(CONCURRENCY)), ids=[f"c{c}" for c in CONCURRENCY])
def test_adaptive_beats_both_static_choices_and_nears_the_oracle(column):
    concurrency = CONCURRENCY[column]
    plain, fixed, adaptive, oracle = (
        tokens_per_s(concurrency, verification)
        for verification in ("none", "fixed", "adaptive", "oracle")
    )
    assert plain == pytest.approx(NO_DRAFTS_TOKENS_PER_S[column], rel=0.03)
    assert fixed == pytest.approx(SEVEN_DRAFTS_TOKENS_PER_S[column], rel=0.04)
    assert adaptive >= max(plain, fixed)
    assert adaptive >= 0.98 * oracle
    # What upstream's reached there, which the fit has not seen.
    assert oracle >= 0.98 * ADAPTIVE_TOKENS_PER_S[column]


def test_late_confidences_cost_little():
    """Asynchronous scheduling ranks with the round before, too."""
    for concurrency in (16, 256):
        static = max(tokens_per_s(concurrency, name) for name in ("none", "fixed"))
        late = tokens_per_s(concurrency, "adaptive", async_scheduling=True)
        assert late >= static
        assert late >= 0.95 * tokens_per_s(concurrency, "oracle")


@pytest.mark.parametrize(
    "drafter",
    [
        {"confidence_temperature": 0.6},
        {"confidence_temperature": 1.6},
        {"confidence_bias": 1.0},
        {"confidence_bias": -1.0},
        {"confidence_noise": 1.0},
    ],
    ids=str,
)
def test_a_drafter_that_errs_costs_no_more_than_drafting_gains(drafter):
    """Wrong confidences lose part of the gain over the better static choice, not more."""
    for concurrency in (16, 256):
        model = replace(scenario(concurrency, "adaptive").acceptance, **drafter)
        static = max(tokens_per_s(concurrency, name) for name in ("none", "fixed"))
        assert tokens_per_s(concurrency, "adaptive", acceptance=model) >= 0.99 * static
