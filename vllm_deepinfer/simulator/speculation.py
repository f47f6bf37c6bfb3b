"""Drafts of the simulated ranks: what the drafter says, what is verified, what survives.

The planner is the engine's own, with inputs of the same age. It sees the start-up profile and the
times of the steps that ran, never the true curve or the true chances.
"""

from __future__ import annotations

import numpy as np

from vllm_deepinfer.scheduler.mean_survival import MeanSurvival
from vllm_deepinfer.scheduler.step_cost import CostSettings, StepCost, StepTimes
from vllm_deepinfer.scheduler.survival import compatible_prior, planning_rates
from vllm_deepinfer.scheduler.verification import PlannerSettings, VerificationPlanner
from vllm_deepinfer.simulator.oracle import best_lengths
from vllm_deepinfer.simulator.randomness import normals, random_bits, uniforms
from vllm_deepinfer.simulator.ranks import Ranks
from vllm_deepinfer.simulator.scenario import PLANNED, Scenario

_REQUEST, _BLOCK = 4, 5  # streams of random bits


class Speculation:
    """Blocks of drafts in flight, one per decoding request.

    Args:
        scenario: with drafting, or without: then every step yields one token per request.
        ranks: whose slots these are.
    """

    def __init__(self, scenario: Scenario, ranks: Ranks) -> None:
        slots = len(ranks.request)
        self.scenario, self.ranks, self.num_drafts = scenario, ranks, scenario.num_drafts
        self.model = scenario.acceptance.first_drafts(self.num_drafts)
        self._trait = np.zeros(slots, dtype=np.float32)
        self._text = np.zeros(slots, dtype=np.float32)
        self._rounds = np.zeros(slots, dtype=np.int64)
        self._luck = np.zeros(slots, dtype=np.float32)  # survives if this is below its chance
        self._level = np.zeros(slots, dtype=np.int16)  # true chances of the open block
        self._said = np.zeros(slots, dtype=np.int16)  # what the drafter said of it
        self._said_before = np.zeros(slots, dtype=np.int16)  # and of the block before
        self._mean_survival = MeanSurvival(self.num_drafts)
        self.planners: list[VerificationPlanner] = []
        if scenario.verification in PLANNED:
            self.planners = [_planner(scenario) for _ in range(scenario.ranks)]

    def begin(self, slots: np.ndarray) -> None:
        """Draft the first block of requests that were just given their first token."""
        bits = self._bits(_REQUEST, slots, slots * 0)
        self._trait[slots] = normals(bits, 0)
        self._text[slots] = normals(bits, 12)
        self._rounds[slots] = 0
        self.draft(slots)

    def draft(self, slots: np.ndarray) -> None:
        """Draft a block for each of the slots."""
        if not self.num_drafts:
            return
        model = self.model
        bits = self._bits(_BLOCK, slots, self.ranks.emitted[slots])
        keep = np.float32(model.persistence)
        text = keep * self._text[slots] + np.sqrt(1 - keep * keep) * normals(bits, 0)
        self._text[slots] = text
        ease = model.request_spread * self._trait[slots] + model.text_spread * text
        self._level[slots] = model.levels(ease)
        self._luck[slots] = uniforms(bits)
        self._said_before[slots] = self._said[slots]
        if model.confidence_noise:
            ease = ease + model.confidence_noise * normals(bits, 12)
        self._said[slots] = model.levels(ease)
        self._rounds[slots] += 1

    def plan(self, slots: np.ndarray, bounds: np.ndarray, context: np.ndarray) -> np.ndarray:
        """Drafts to verify of each decoding slot.

        Args:
            slots: decoding slots, rank by rank.
            bounds: where each rank's part of `slots` begins, and the end, int64 [ranks + 1].
            context: tokens in the KV cache of each rank's decoding requests.
        """
        limits = np.minimum(self.num_drafts, self.ranks.output_left[slots] - 1).astype(np.int32)
        verification = self.scenario.verification
        if verification in ("none", "fixed"):
            return limits
        if verification in PLANNED:
            budget, ranking = self._planning_rates(slots)
        lengths = np.empty(len(slots), dtype=np.int32)
        for rank in np.flatnonzero(np.diff(bounds)):
            part = slice(bounds[rank], bounds[rank + 1])
            tokens = int(context[rank])
            if verification in PLANNED:
                plan = self.planners[rank].plan(budget[part], ranking[part], limits[part], tokens)
                lengths[part] = plan.num_drafts
            else:
                chances = self.model.true_rows[self._level[slots[part]]]
                lengths[part] = best_lengths(self.scenario.curve, chances, limits[part], tokens)
        return lengths

    def _planning_rates(self, slots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Rows as the engine has them: in async scheduling the newest are still on their way."""
        rows, rounds = self.model.confidence_rows, self._rounds[slots]
        newest = rows.take(self._said[slots], axis=0)
        previous = rows.take(self._said_before[slots], axis=0)
        is_late = np.full(len(slots), self.scenario.async_scheduling)
        if self.scenario.verification == "compatible":
            prior = compatible_prior(rounds > 0, is_late, self.num_drafts)
        else:
            prior = self._mean_survival.rates()
        prior = prior.astype(np.float32)
        if self.scenario.async_scheduling:
            return planning_rates(previous, previous, rounds > 1, rounds > 2, is_late, prior)
        return planning_rates(newest, previous, rounds > 0, rounds > 1, is_late, prior)

    def verify(self, slots: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """How many of the verified drafts survive."""
        if not self.num_drafts:
            return np.zeros(len(slots), dtype=np.int64)
        chances = self.model.true_rows.take(self._level[slots], axis=0)
        alive = (chances > self._luck[slots][:, None]).view(np.int8)
        survived = np.minimum(np.einsum("ij->i", alive), lengths).astype(np.int64)
        if self.planners:
            self._mean_survival.settle(lengths, survived)
        return survived

    def observe(
        self,
        sequences: np.ndarray,
        tokens: np.ndarray,
        context: np.ndarray,
        forward_ms: np.ndarray,
        sampler_ms: np.ndarray,
    ) -> None:
        """Tell every rank's planner what its step took, all arguments [ranks]."""
        for rank in np.flatnonzero(sequences) if self.planners else ():
            cost = self.planners[rank].cost
            cost.observe(
                StepTimes(
                    int(sequences[rank]),
                    int(tokens[rank]),
                    int(context[rank]),
                    float(forward_ms[rank]),
                    float(sampler_ms[rank]),
                )
            )

    def _bits(self, stream: int, slots: np.ndarray, position: np.ndarray) -> np.ndarray:
        return random_bits(self.scenario.seed, stream, self.ranks.request[slots], position)


def _planner(scenario: Scenario) -> VerificationPlanner:
    """One rank's planner, which knows the start-up profile."""
    if scenario.verification == "compatible":
        cost = StepCost(scenario.curve.profile(), CostSettings.compatible())
        return VerificationPlanner(cost, scenario.num_drafts, PlannerSettings.compatible())
    settings = PlannerSettings(min_benefit=scenario.min_benefit)
    return VerificationPlanner(StepCost(scenario.curve.profile()), scenario.num_drafts, settings)
