"""Verifying a planned number of drafts leaves the law of the text the target's.

If this fails, drafting changes what a sampled request says. Every outcome of a few rounds of two
sequences is enumerated: drafts of a Markov drafter, whose confidences tell as much of its drafts as
they can; the lengths the planner chooses; acceptance with chance min(1, p/q) and the residual law.
A budget that looks at the drafts to be verified must break the law, or the test could not fail.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator
from functools import cache

import numpy as np
import pytest

from vllm_deepinfer.scheduler.step_cost import StepCost
from vllm_deepinfer.scheduler.survival import planning_rates
from vllm_deepinfer.scheduler.verification import PlannerSettings, VerificationPlanner

VOCABULARY = (0, 1)
NUM_DRAFTS = 2
TARGET = ((0.35, 0.65), (0.8, 0.2))  # [last token][token]
DRAFTER = ((0.6, 0.4), (0.3, 0.7))
# Four rows fill the first stair, six the second: how many are worth it turns on confidences.
CURVE = [(2, 10.0), (4, 16.0), (6, 17.0)]
STATELESS = PlannerSettings(min_benefit=0.0, explore_every=0)
STICKY = PlannerSettings(min_benefit=0.05, explore_every=2, explore_loss=0.5)

Text = tuple[int, ...]
Rows = tuple[tuple[float, ...], ...]  # cumulative chances, by sequence
UNKNOWN: Rows = ((0.7, 0.5), (0.6, 0.4))


def told(last: int, drafts: Text) -> tuple[float, ...]:
    """Confidence k + 1 says which token draft k is."""
    first = (0.9, 0.5)[last]
    return first, first * (0.98, 0.03)[drafts[0]]


@cache
def planned(settings: PlannerSettings, past: tuple[Rows, ...], ranking: Rows) -> tuple[int, ...]:
    """Lengths of a step whose planner has seen the budgets ``past``, the last of them for this."""
    planner = VerificationPlanner(StepCost(CURVE), NUM_DRAFTS, settings)
    limits = np.full(len(ranking), NUM_DRAFTS, dtype=np.int32)
    for budget in past:
        plan = planner.plan(np.array(budget), np.array(ranking), limits)
    return tuple(int(length) for length in plan.num_drafts)


def draft_blocks(last: int) -> Iterator[tuple[Text, float]]:
    for drafts in itertools.product(VOCABULARY, repeat=NUM_DRAFTS):
        chance, before = 1.0, last
        for token in drafts:
            chance, before = chance * DRAFTER[before][token], token
        yield drafts, chance


@cache
def verified(last: int, drafts: Text) -> tuple[tuple[Text, float], ...]:
    """Texts that verifying these drafts emits, with their chances."""
    target, drafter = TARGET[last], DRAFTER[last]
    if not drafts:
        return tuple(((token,), target[token]) for token in VOCABULARY)
    accept = min(1.0, target[drafts[0]] / drafter[drafts[0]])
    residual = [max(0.0, p - q) for p, q in zip(target, drafter, strict=True)]
    rest = verified(drafts[0], drafts[1:])
    outcomes = [((drafts[0], *text), accept * chance) for text, chance in rest]
    for token in VOCABULARY:
        if accept < 1.0 and residual[token]:
            outcomes.append(((token,), (1 - accept) * residual[token] / sum(residual)))
    return tuple(outcomes)


def law_of_texts(settings: PlannerSettings, num_rounds: int, looks: str) -> dict:
    """Joint law of the first ``num_rounds`` tokens of two sequences that begin with token 0.

    Args:
        looks: "sync": settled budget, fresh ranking; "async": both settled, a step is in flight;
            "peeking": the budget looks at the drafts to be verified.
    """
    states = {((), (), (0, 0), UNKNOWN, ()): 1.0}
    for _ in range(num_rounds):
        following: dict = defaultdict(float)
        for (*texts, last, settled, past), weight in states.items():
            for blocks in itertools.product(*(draft_blocks(token) for token in last)):
                drafts = [block for block, _ in blocks]
                fresh = tuple(told(*pair) for pair in zip(last, drafts, strict=True))
                budget, ranking = rows_for(looks, fresh, settled)
                seen = (*past, budget) if settings is STICKY else (budget,)
                lengths = planned(settings, seen, ranking)
                chance = weight * blocks[0][1] * blocks[1][1]
                for outcome in itertools.product(
                    *(verified(last[i], drafts[i][: lengths[i]]) for i in range(2))
                ):
                    ends = [(*texts[i], *outcome[i][0])[:num_rounds] for i in range(2)]
                    newest = tuple(text[-1] for text, _ in outcome)
                    key = (*ends, newest, fresh, seen if settings is STICKY else ())
                    following[key] += chance * outcome[0][1] * outcome[1][1]
        states = following
    law: dict = defaultdict(float)
    for (first, second, *_), chance in states.items():
        law[first, second] += chance
    return law


def rows_for(looks: str, fresh: Rows, settled: Rows) -> tuple[Rows, Rows]:
    if looks == "peeking":
        return fresh, fresh
    in_flight = np.full(2, looks == "async")
    newest = settled if looks == "async" else fresh
    known = np.ones(2, dtype=bool)
    rows = planning_rates(
        np.array(newest), np.array(settled), known, known, in_flight, np.zeros(NUM_DRAFTS)
    )
    budget, ranking = (tuple(map(tuple, table.tolist())) for table in rows)
    return budget, ranking


def distance_to_target(law: dict, num_tokens: int) -> float:
    """Largest error of any pair of texts."""

    def chance(text: Text) -> float:
        return float(np.prod([TARGET[b][t] for b, t in zip((0, *text), text, strict=False)]))

    texts = list(itertools.product(VOCABULARY, repeat=num_tokens))
    assert set(law) <= set(itertools.product(texts, texts))
    return max(abs(law[a, b] - chance(a) * chance(b)) for a in texts for b in texts)


@pytest.mark.parametrize("looks", ["sync", "async"])
@pytest.mark.parametrize(("settings", "num_rounds"), [(STATELESS, 3), (STICKY, 3)])
def test_the_law_is_the_targets(settings, num_rounds, looks):
    assert distance_to_target(law_of_texts(settings, num_rounds, looks), num_rounds) < 1e-12


@pytest.mark.parametrize("settings", [STATELESS, STICKY])
def test_a_budget_that_looks_at_its_drafts_breaks_the_law(settings):
    assert distance_to_target(law_of_texts(settings, 2, "peeking"), 2) > 1e-3


def test_lengths_vary_in_the_enumeration():
    planned.cache_clear()
    lengths = set()
    for past, ranking in itertools.product(possible_rows(), possible_rows()):
        lengths.add(planned(STATELESS, (past,), ranking))
    assert len(lengths) >= 4 and {sum(pair) for pair in lengths} >= {0, 4}


def possible_rows() -> list[Rows]:
    one = [told(last, (x, 0)) for last in VOCABULARY for x in VOCABULARY]
    return list(itertools.product(one, one))
