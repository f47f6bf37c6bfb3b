"""The start-up block names mode, bounds, sizes and where prices come from.

If this breaks, operators cannot tell from a log how a server schedules.
"""

from __future__ import annotations

from drafting.stand_in_engine import generate, prompt, sampling

from vllm_deepinfer.config import DeepInferConfig
from vllm_deepinfer.scheduler import adaptive, parts
from vllm_deepinfer.scheduler.announce import (
    describe_cost,
    describe_verification,
    describe_vote,
)
from vllm_deepinfer.scheduler.step_cost import StepCost


def test_sentences_name_every_bound():
    cadence = DeepInferConfig(prefill_vote="cadence", prefill_any_interval=33)
    said = describe_vote(cadence, 2)
    for part in ("2 ranks", "cadence", "70", "33", "strict", "at most 8 steps", "0.9"):
        assert part in said
    slo = describe_vote(DeepInferConfig(prefill_vote="slo", ttft_target_ms=1500.0), 1)
    for part in ("one rank", "slo", "1500 ms", "50 ms", "100"):
        assert part in slo
    assert "off" in describe_vote(DeepInferConfig(), 2)
    options = DeepInferConfig(verification="adaptive")
    saved = StepCost([(1, 2.0), (64, 5.5)], source="saved")
    assert describe_cost(saved) == "saved: 1, 64 tokens, 2.00 to 5.50 ms"
    assert "saved: 1, 64 tokens" in describe_verification(options, 5, saved)
    assert "profiled at start" in describe_verification(options, 5, None)
    assert "all 5 drafts" in describe_verification(DeepInferConfig(), 5, None)


def test_an_engine_says_them(stand_ins, monkeypatch):
    said = []
    for module in (parts, adaptive):
        monkeypatch.setattr(module.logger, "info", lambda text, *args: said.append(text % args))
    options = {"prefill_vote": "slo", "verification": "adaptive"}
    llm = stand_ins(5, additional_config={"deepinfer": options})
    generate(llm, [prompt(9, 1)], sampling(3))
    at_start, costs = said
    assert at_start.startswith("Prefill vote of one rank by slo")
    assert "up to 5 drafts, adaptive" in at_start
    assert costs.startswith("Step costs: profile: 1, 2, 4")
