"""vLLM's planner gets this package's costs at the same executed step on every tensor-parallel rank.

If this fails, ranks wait for each other's broadcasts for ever, or trim the same batch differently.
The planner is vLLM's class on a CPU; the ranks are played one after the other.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from vllm.v1.worker.gpu.spec_decode import adaptive_verification as upstream

from vllm_deepinfer.scheduler.parts import CostFile
from vllm_deepinfer.testing.adaptive_manager import manager_on_cpu
from vllm_deepinfer.worker import planner_costs
from vllm_deepinfer.worker.planner_costs import PlannerCosts
from vllm_deepinfer.worker.step_clock import PendingSteps, StepShape, TimedStep

SIZES = [4, 8, 16, 24]
PROFILE = [(4, 10.0), (8, 10.1), (16, 10.2), (24, 10.3)]
REFRESH_EVERY_STEPS = 256


class Event:
    def __init__(self, time_ms: float, has_come: bool = True) -> None:
        self.time_ms, self.has_come = time_ms, has_come

    def query(self) -> bool:
        return self.has_come

    def elapsed_time(self, end: Event) -> float:
        return end.time_ms - self.time_ms


def step(forward_ms=5.0, sampler_ms=1.0, shape=(4, 16, 0, True), has_come=True) -> TimedStep:
    events = 0.0, forward_ms, forward_ms + sampler_ms
    return TimedStep(*(Event(time_ms, has_come) for time_ms in events), StepShape(*shape))


def decoding(*sizes: int, count: int) -> list[TimedStep]:
    """Steps of these sizes in turn, of as many milliseconds as tokens."""
    turns = [sizes[number % len(sizes)] for number in range(count)]
    return [step(float(size), shape=(4, size, 0, True)) for size in turns]


class Ranks:
    """A tensor-parallel group whose first rank's broadcasts are kept for the others."""

    def __init__(self) -> None:
        self.rank_in_group, self.sent, self.at_step, self.num_received = 0, [], [], 0
        self.num_steps = 0

    def broadcast_object(self, curves, src):
        self.at_step.append(self.num_steps)
        if self.rank_in_group == src:
            self.sent.append(curves)
            return curves
        self.num_received += 1
        return self.sent[self.num_received - 1]


@pytest.fixture
def ranks(monkeypatch):
    group = Ranks()
    monkeypatch.setattr(upstream, "get_tp_group", lambda: group)
    monkeypatch.setattr(planner_costs, "get_tp_group", lambda: group)
    monkeypatch.setattr(planner_costs, "cost_file", lambda config: None)
    return group


def make_runner():
    manager = manager_on_cpu(np.full((4, 5), 0.8, dtype=np.float32), SIZES[-1], 64)
    manager.set_cost_curves([(1, 1.0), (4, 2.0)], PROFILE)
    graphs = SimpleNamespace(captured_token_counts=lambda: SIZES)
    return SimpleNamespace(adaptive_verification=manager, cudagraph_manager=graphs)


def run_rank(ranks, rank, steps):
    ranks.rank_in_group, ranks.num_steps, ranks.at_step = rank, 0, []
    runner = make_runner()
    costs = PlannerCosts(None, runner)
    for timed in steps:
        ranks.num_steps += 1
        costs.step(timed)
    return ranks.at_step, runner.adaptive_verification.cost_tables


def test_ranks_refresh_together_whatever_they_measured(ranks):
    """Rank 1 runs slower, hears of its steps' ends late, and is never told of some."""
    fast = decoding(16, 24, count=3 * REFRESH_EVERY_STEPS)
    slow = [
        step(70.0, shape=timed.shape, has_come=number % 3 > 0) for number, timed in enumerate(fast)
    ]
    steps, tables = run_rank(ranks, 0, fast)
    others, theirs = run_rank(ranks, 1, slow)
    assert steps == others == [0, 256, 512, 768]
    np.testing.assert_array_equal(tables[0], theirs[0])
    np.testing.assert_array_equal(tables[1], theirs[1])
    assert (tables[1][16], tables[1][24]) == (16.0, 24.0)


def test_prompts_are_counted_and_teach_nothing(ranks):
    prompts = [step(forward_ms=900.0, shape=(4, 16, 0, False))] * (2 * REFRESH_EVERY_STEPS)
    steps, tables = run_rank(ranks, 0, prompts)
    assert steps == [0, 256, 512]
    assert tables[1][16] == 10.2


def test_costs_of_an_earlier_run_are_used_at_once_and_kept(ranks, monkeypatch, tmp_path):
    file = CostFile(tmp_path / "costs", "a key")
    monkeypatch.setattr(planner_costs, "cost_file", lambda config: file)
    costs = PlannerCosts(None, make_runner())
    for timed in decoding(16, 24, count=100):
        costs.step(timed)
    costs.save()
    runner = make_runner()
    PlannerCosts(None, runner)
    tables = runner.adaptive_verification.cost_tables
    assert (tables[1][16], tables[1][24]) == (16.0, 24.0)


def test_other_ranks_write_no_file(ranks, monkeypatch, tmp_path):
    file = CostFile(tmp_path / "costs", "a key")
    monkeypatch.setattr(planner_costs, "cost_file", lambda config: file)
    costs = PlannerCosts(None, make_runner())
    ranks.rank_in_group = 1
    costs.save()
    assert not file.path.exists()


def test_drafter_without_confidences_is_refused():
    runner = SimpleNamespace(adaptive_verification=None)
    with pytest.raises(RuntimeError, match="no confidence head; choose verification all"):
        PlannerCosts(None, runner)


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 20)), max_size=60))
def test_steps_are_taken_in_order_and_only_when_they_ended(plan):
    """Each step ends some steps after it was launched; one that ends late holds back the rest."""
    pending, launched, taken = PendingSteps(), [], []
    for now, (asks, delay) in enumerate(plan):
        timed = step(forward_ms=float(now + 1), has_come=False)
        launched.append((now + delay, timed))
        pending.add(timed)
        for due, earlier in launched:
            earlier.end.has_come = due <= now
        if asks and (times := pending.take_finished()) is not None:
            number = int(times.forward_ms) - 1
            assert launched[number][0] <= now
            taken.append(number)
    assert taken == sorted(set(taken))
