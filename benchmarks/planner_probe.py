"""Times the verification planner and, in the same run, vLLM's choice of a budget."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
from vllm.v1.worker.gpu.spec_decode import adaptive_verification as upstream

from vllm_deepinfer.scheduler import step_cost, step_cost_reference, verification_reference
from vllm_deepinfer.scheduler.step_cost import CostSettings, StepCost, StepTimes
from vllm_deepinfer.scheduler.verification import PlannerSettings, VerificationPlanner
from vllm_deepinfer.testing.adaptive_manager import manager_on_cpu

OURS, UNPADDED, PYTHON = "planner", "planner_unpadded", "planner_reference"
VLLM, OBSERVE = "vllm_get_num_tokens", "observe"
SIZE_INTERVAL = 8  # tokens between captured graphs
MEANING = {
    OURS: "VerificationPlanner.plan, NumPy arrays at hand: budget, static lengths and ranking",
    UNPADDED: "the same where every number of tokens has its own price, as without graphs",
    PYTHON: "the first without the C++ extension",
    VLLM: "AdaptiveVerificationManager.get_num_tokens: the budget alone, from its dicts; vLLM "
    "ranks on the device",
    OBSERVE: "StepCost.observe: what learning from a step adds",
}


def measure_planner(
    sequences: list[int], num_drafts: int, calls: int, repeats: int, seed: int
) -> list[dict[str, Any]]:
    """One entry per number of sequences: microseconds of a call, by what is called."""
    return [_measure(n, num_drafts, calls, repeats, seed) for n in sequences]


def _measure(n: int, num_drafts: int, calls: int, repeats: int, seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    newest, settled = rng.beta(4.0, 1.5, (2, n, num_drafts)).astype(np.float32)
    curve = _staircase(n * (num_drafts + 1))
    timed = {
        OURS: _plan(StepCost(curve), newest, settled),
        UNPADDED: _plan(StepCost(curve, CostSettings(padded=False)), newest, settled),
        PYTHON: _plan(_reference_cost(curve), newest, settled),
        VLLM: _vllm_budget(curve, settled),
        OBSERVE: _observe(StepCost(curve), n, rng),
    }
    # The reference takes milliseconds: fewer calls.
    counts = dict.fromkeys(timed, calls) | {PYTHON: max(5, calls // 100)}
    return {
        "sequences": n,
        "drafts": num_drafts,
        "buckets": len(curve),
        "microseconds": {
            name: _spread([_median_us(call, counts[name]) for _ in range(repeats)])
            for name, call in timed.items()
        },
        "budget": {"planner": timed[OURS]().num_tokens, "vllm": timed[VLLM]()},
    }


def _staircase(most: int) -> list[tuple[int, float]]:
    """Graph sizes as DeepInfer and vLLM capture them; 10 ms, then 0.01 ms a token."""
    sizes = [1, 2, 4, *range(SIZE_INTERVAL, most + SIZE_INTERVAL, SIZE_INTERVAL)]
    return [(size, 10.0 + 0.01 * size) for size in sizes]


def _plan(cost: StepCost, newest: np.ndarray, settled: np.ndarray) -> Callable[[], Any]:
    n, num_drafts = newest.shape
    planner = VerificationPlanner(cost, num_drafts, PlannerSettings())
    budget, ranking = np.cumprod(settled, axis=1), np.cumprod(newest, axis=1)
    limits = np.full(n, num_drafts, dtype=np.int32)
    return lambda: planner.plan(budget, ranking, limits, context_tokens=1000 * n)


def _reference_cost(curve: list[tuple[int, float]]) -> StepCost:
    classes = step_cost_reference.CostCore, verification_reference.PlannerCore
    with mock.patch.object(step_cost, "backend", lambda: classes):
        return StepCost(curve)


def _vllm_budget(curve: list[tuple[int, float]], settled: np.ndarray) -> Callable[[], Any]:
    n, num_drafts = settled.shape
    manager = manager_on_cpu(settled, curve[-1][0], max_num_batched_tokens=curve[-1][0])
    group = SimpleNamespace(broadcast_object=lambda curves, src: curves)
    with mock.patch.object(upstream, "get_tp_group", lambda: group):
        manager.set_cost_curves([(n, 1e-6)], curve)
    names = [str(i) for i in range(n)]
    tokens = dict.fromkeys(names, num_drafts + 1)
    drafts = {name: [-1] * num_drafts for name in names}
    return lambda: manager.get_num_tokens(tokens, drafts)


def _observe(cost: StepCost, n: int, rng: np.random.Generator) -> Callable[[], Any]:
    sizes = [size for size in cost.sizes if size >= n]
    steps = [
        StepTimes(n, size, 1000 * n, 10.0 + 0.01 * size + rng.random(), 1.0)
        for size in rng.choice(sizes, 4096).tolist()
    ]
    for times in steps:
        cost.observe(times)
    following = iter(steps * 1000)
    return lambda: cost.observe(next(following))


def _median_us(call: Callable[[], Any], count: int) -> float:
    durations = []
    for _ in range(count):
        begin = time.perf_counter_ns()
        call()
        durations.append(time.perf_counter_ns() - begin)
    return statistics.median(durations) / 1000


def _spread(medians: list[float]) -> dict[str, Any]:
    return {"median": statistics.median(medians), "runs": medians}
