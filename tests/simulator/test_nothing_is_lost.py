"""Every request ends with all its tokens, whatever the policies, caches and loads. Else the figures
of a run leave out the work that was dropped."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_deepinfer.scheduler.vote import VoteSettings
from vllm_deepinfer.simulator import Arrival, Scenario, Simulation, StepRecord, Traffic
from vllm_deepinfer.simulator.published import dp8_prefill

LONGEST_PROMPT, LONGEST_OUTPUT, DRAFTS = 90, 25, 3


def arrivals(ranks: int) -> st.SearchStrategy[tuple[Arrival, ...]]:
    entry = st.builds(
        Arrival,
        arrival_ms=st.floats(0, 3000),
        prompt_tokens=st.integers(1, LONGEST_PROMPT),
        output_tokens=st.integers(1, LONGEST_OUTPUT),
        rank=st.integers(-1, ranks - 1),
    )
    return st.lists(entry, min_size=1, max_size=30).map(lambda found: tuple(sorted(found)))


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    ranks = draw(st.integers(1, 4))
    vote = draw(
        st.none()
        | st.builds(
            VoteSettings,
            mode=st.sampled_from(["cadence", "slo"]),
            all_interval=st.integers(1, 30),
            any_interval=st.integers(1, 30),
            resume_interval=st.integers(0, 10),
            idle_interval=st.integers(0, 10),
            max_prefill_steps=st.integers(1, 5),
        )
    )
    tightest = LONGEST_PROMPT + LONGEST_OUTPUT + DRAFTS
    return Scenario(
        ranks=ranks,
        sequences=draw(st.integers(1, 4)),
        chunk_tokens=draw(st.integers(4 * (1 + DRAFTS), 128)),
        kv_tokens=draw(st.none() | st.integers(tightest, 3 * tightest)),
        curve=dp8_prefill(),
        traffic=Traffic("recorded", recorded=draw(arrivals(ranks))),
        vote=vote,
        prefill_interval=1 if vote else draw(st.integers(1, 4)),
        strict=draw(st.booleans()),
        verification=draw(st.sampled_from(["none", "fixed", "adaptive", "oracle"])),
        drafts=DRAFTS,
        async_scheduling=draw(st.booleans()),
        steps=None,
        seed=draw(st.integers(0, 9)),
    )


class Watch:
    """Checks the state after every step."""

    def __init__(self) -> None:
        self.steps = 0

    def __call__(self, record: StepRecord) -> None:
        self.steps += 1
        assert self.steps < 20_000, "the run does not end"
        ranks, scenario = record.simulation.ranks, record.simulation.scenario
        held = (ranks.context + ranks.prompt_left) * (ranks.request >= 0)
        per_rank = held.reshape(scenario.ranks, -1).sum(axis=1)
        assert per_rank.tolist() == ranks.held_tokens.tolist()
        if scenario.kv_tokens is not None:
            assert per_rank.max() <= scenario.kv_tokens
        decoding = ranks.is_decoding.reshape(scenario.ranks, -1).sum(axis=1)
        assert decoding.tolist() == ranks.num_decoding.tolist()
        running = ranks.request[ranks.request >= 0]
        queued = [request for queue in ranks.waiting for request in queue]
        assert len({*running.tolist(), *queued}) == len(running) + len(queued)
        phases = record.simulation.phases
        if scenario.vote is not None:
            assert len(phases.votes) == scenario.ranks
            assert len(set(phases.verdicts)) == 1, "ranks disagree on the next step"
            assert len({vote.phase for vote in phases.votes}) == 1


@settings(max_examples=120)
@given(scenarios())
def test_all_requests_end_with_all_tokens_and_ranks_agree(scenario):
    simulation = Simulation(scenario, Watch(), num_votes=scenario.ranks)
    measures = simulation.run()
    requests, summary = simulation.requests, measures.summary()
    expected = np.array([entry.output_tokens for entry in scenario.traffic.recorded])
    assert requests.num_arrived == len(expected)
    assert requests.emitted.tolist() == expected.tolist()
    assert (requests.finish_ms >= requests.first_token_ms).all()
    assert (requests.first_token_ms > requests.arrival_ms).all()
    assert summary["requests"]["finished"] == len(expected)
    assert sum(measures.tokens) == expected.sum()
    assert simulation.ranks.is_idle()
    assert (simulation.ranks.held_tokens == 0).all()


def test_preemption_happens_and_loses_nothing():
    traffic = Traffic("recorded", recorded=tuple(Arrival(0.0, 10, 60) for _ in range(12)))
    scenario = Scenario(
        ranks=1, sequences=8, chunk_tokens=64, kv_tokens=200, traffic=traffic, steps=None
    )
    simulation = Simulation(scenario, Watch())
    summary = simulation.run().summary()
    assert summary["requests"]["preempted"] > 0
    assert simulation.requests.emitted.tolist() == [60] * 12


def test_a_seed_repeats_a_run_and_another_does_not():
    scenarios = [Scenario(verification="adaptive", steps=200, seed=seed) for seed in (1, 1, 2)]
    one, two, three = (Simulation(scenario).run().summary() for scenario in scenarios)
    assert one == two != three


def test_an_observer_and_copies_of_the_vote_change_nothing():
    scenario = Scenario(vote=VoteSettings(mode="slo"), steps=400)
    plain = Simulation(scenario).run().summary()
    assert Simulation(scenario, Watch(), num_votes=8).run().summary() == plain
