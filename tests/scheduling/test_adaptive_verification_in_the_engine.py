"""How many drafts a step verifies follows their worth and never shows in the text.

If this breaks, drafts are verified that cost more than they bring, or sampling is biased by what
was verified. Takes about 40 s.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
from drafting.stand_in_engine import (
    behave,
    expected,
    generate,
    num_faults,
    prompt,
    sampling,
)
from in_process import answer, scheduler
from scheduling.steps import recorded
from vllm import TokensPrompt

from vllm_deepinfer.scheduler.step_cost import CostSettings, StepCost
from vllm_deepinfer.testing.stand_in.law import logits_table

PROMPTS = [prompt(20 + 5 * salt, salt) for salt in range(24)]
ADAPTIVE = {"additional_config": {"deepinfer": {"verification": "adaptive"}}}
# A machine on which a step of up to 40 tokens costs the same, and each token above it much.
STEEP = [(1, 10.0), (40, 10.0), (41, 20.0), (200, 180.0)]
LIVELY = {"acceptance": (0.9, 0.7, 0.5, 0.3, 0.1), "confidence_spread": 0.9}


def price(llm, curve):
    """Let the planner believe in a curve, whatever steps take here."""
    verification = scheduler(llm).parts.verification
    verification._use(StepCost(curve, CostSettings(padded=False)))
    verification.observe = lambda times: None


@pytest.mark.parametrize("async_scheduling", [True, False])
def test_lengths_follow_the_curve_and_the_confidences(stand_ins, async_scheduling):
    llm = stand_ins(5, async_scheduling=async_scheduling, **ADAPTIVE)
    behave(llm, **LIVELY)
    price(llm, STEEP)
    with recorded(llm) as found:
        assert generate(llm, PROMPTS, sampling(80)) == expected(PROMPTS, 80)
    full = [step for step in found.steps if step.decodes == 24 and not step.prompts][2:]
    assert np.mean([sum(step.num_drafts) + step.decodes <= 40 for step in full]) > 0.9
    assert {length for step in full for length in step.num_drafts} >= {0, 1, 2}
    few = [step for step in found.steps if 0 < step.decodes < 5 and not step.prompts]
    assert all(min(step.num_drafts) >= 4 for step in few if step.decodes == 1)
    offered = scheduler(llm).parts.ledger.num_offered
    accepted = scheduler(llm).parts.ledger.num_accepted
    assert (np.diff(offered) <= 0).all() and accepted.sum() / offered.sum() > 0.5
    assert num_faults(llm) == 0


def test_drafts_beyond_the_end_of_a_request_are_not_verified(stand_ins):
    """The last token needs no draft behind it."""
    llm = stand_ins(5, async_scheduling=False, **ADAPTIVE)
    behave(llm, acceptance=(1.0,) * 5)
    price(llm, [(1, 10.0), (4096, 10.5)])
    for length in range(1, 14):
        before = scheduler(llm).parts.ledger.num_offered.sum()
        assert generate(llm, PROMPTS[:1], sampling(length)) == expected(PROMPTS[:1], length)
        offered = scheduler(llm).parts.ledger.num_offered.sum() - before
        # Six tokens a block, the first token comes from the prompt.
        blocks, rest = divmod(length - 1, 6)
        assert offered == 5 * blocks + max(rest - 1, 0)


def test_seeds_and_log_probabilities_are_those_of_plain_decoding(stand_ins):
    mixed = [
        sampling(40, temperature=salt % 3 / 2, seed=salt, top_p=0.9, logprobs=2)
        for salt in range(24)
    ]
    inputs = [TokensPrompt(prompt_token_ids=tokens) for tokens in PROMPTS]
    said = []
    for num_drafts, options in ((0, {}), (5, ADAPTIVE)):
        llm = stand_ins(num_drafts, **options)
        if num_drafts:
            behave(llm, **LIVELY)
            price(llm, STEEP)
        said.append([answer(output) for output in llm.generate(inputs, mixed, use_tqdm=False)])
    plain, adaptive = said
    assert [tokens for tokens, _ in plain] == [tokens for tokens, _ in adaptive]
    assert all(
        one == pytest.approx(other, abs=1e-6)
        for (_, one), (_, other) in zip(plain, adaptive, strict=True)
    )


def test_sampled_text_follows_the_targets_law(stand_ins):
    """Chi-square of each token's successor, over 14,400 draws while lengths change."""
    llm = stand_ins(5, **ADAPTIVE)
    behave(llm, **LIVELY)
    price(llm, STEEP)
    prompts = [prompt(10, salt) for salt in range(48)]
    params = [sampling(300, temperature=1.0, seed=salt) for salt in range(48)]
    texts = generate(llm, prompts, params)
    logits = logits_table(0).astype(np.float64)
    law = np.exp(logits - logits.max(1, keepdims=True))
    law /= law.sum(1, keepdims=True)
    before = np.concatenate([[p[-1], *t[:-1]] for p, t in zip(prompts, texts, strict=True)])
    after = np.concatenate(texts)
    # The rank of what was drawn among what its predecessor may be followed by.
    order = np.argsort(-law, axis=1)
    rank = np.argsort(order, axis=1)[before, after]
    chances = np.take_along_axis(law[before], order[before], axis=1)[:, :4].sum(0)
    counts = np.array([(rank == place).sum() for place in range(4)], dtype=float)
    counts, chances = (np.append(values, len(after) - values.sum()) for values in (counts, chances))
    statistic = float(((counts - chances) ** 2 / np.maximum(chances, 1e-9)).sum())
    assert statistic < 23.5  # one in ten thousand at four degrees of freedom


def test_costs_are_profiled_learned_and_kept_for_the_next_start(stand_ins, tmp_path):
    file = tmp_path / "costs.json"
    options = {"verification": "adaptive", "step_cost_file": str(file)}
    llm = stand_ins(5, additional_config={"deepinfer": options})
    behave(llm, acceptance=(0.0,) * 5)
    generate(llm, PROMPTS, sampling(60))
    verification = scheduler(llm).parts.verification
    sizes = [tokens for tokens, _ in verification.cost.curve]
    assert sizes[0] == 1 and len(sizes) >= 3
    assert verification.cost.source == "profile"
    assert any(verification.cost.is_measured(size) for size in sizes)
    scheduler(llm).parts.save_costs()
    state = json.loads(file.read_text())["step_cost"]
    again = scheduler(llm).parts.cost_file.load()
    assert again.source == "saved" and again.state() == StepCost.from_state(state).state()


def test_compatible_planning_says_the_same(stand_ins):
    llm = stand_ins(5, additional_config={"deepinfer": {"verification": "compatible"}})
    behave(llm, **LIVELY)
    assert generate(llm, PROMPTS, sampling(60)) == expected(PROMPTS, 60)
    assert num_faults(llm) == 0
