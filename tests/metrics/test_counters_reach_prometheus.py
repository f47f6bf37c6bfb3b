"""What the engine core counts is what a scrape of ``/metrics`` shows; other models show nothing.

If this fails, operators see no acceptance, or one process's file stays behind another.
"""

from __future__ import annotations

from types import SimpleNamespace

import prometheus_client
import pytest

from vllm_deepinfer.metrics import exporter, shared_counters
from vllm_deepinfer.metrics.catalogue import families
from vllm_deepinfer.metrics.shared_counters import SharedCounters, counter_file


def configuration(
    num_drafts=2, scheduler="vllm_deepinfer.scheduler.mixin.DeepInferScheduler", **options
):
    drafting = SimpleNamespace(
        num_speculative_tokens=num_drafts, enable_adaptive_verification=False
    )
    drafting = None if num_drafts == 0 else drafting
    return SimpleNamespace(
        speculative_config=drafting,
        scheduler_config=SimpleNamespace(scheduler_cls=scheduler),
        instance_id="test",
        additional_config={"deepinfer": options},
    )


def names(config):
    return [name for family in families(config) for name in family.counters()]


@pytest.fixture(autouse=True)
def private(monkeypatch, tmp_path):
    """A registry and a folder of the test's own."""
    monkeypatch.setattr(prometheus_client, "REGISTRY", prometheus_client.CollectorRegistry())
    monkeypatch.setattr(shared_counters.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(exporter.atexit, "register", lambda *args, **kwargs: None)


def scrape() -> str:
    return prometheus_client.generate_latest(prometheus_client.REGISTRY).decode()


def test_counts_show_by_engine_and_position():
    exporter.CounterExporter(configuration(), 3)
    assert "vllm_deepinfer" not in scrape()  # the engine core is still starting
    counters = SharedCounters(counter_file("test", 3), names(configuration()), create=True)
    counters.add("draft_offered_0", 5)
    counters.add("draft_accepted_1", 2)
    counters.add("draft_confidence_0", 3.5)
    shown = scrape()
    assert 'vllm_deepinfer_draft_offered_total{engine="3",position="0"} 5.0' in shown
    assert 'vllm_deepinfer_draft_accepted_total{engine="3",position="1"} 2.0' in shown
    assert 'vllm_deepinfer_draft_confidence_total{engine="3",position="0"} 3.5' in shown
    counters.add("draft_offered_0")
    assert 'vllm_deepinfer_draft_offered_total{engine="3",position="0"} 6.0' in scrape()


@pytest.mark.parametrize(
    "config",
    [
        configuration(num_drafts=0),
        configuration(scheduler="vllm.v1.core.sched.scheduler.Scheduler"),
    ],
    ids=["no drafting", "another scheduler"],
)
def test_other_models_register_nothing(config):
    exporter.CounterExporter(config, 0)
    assert scrape() == ""


def test_counts_stay_readable_after_the_file_is_removed():
    exporter.CounterExporter(configuration(), 0)
    counters = SharedCounters(counter_file("test", 0), names(configuration()), create=True)
    assert "vllm_deepinfer_draft_offered_total" in scrape()
    counters.remove()
    assert not counter_file("test", 0).exists()
    assert "vllm_deepinfer_draft_offered_total" in scrape()


def test_votes_and_plans_show_by_kind():
    config = configuration(prefill_vote="cadence", verification="adaptive")
    exporter.CounterExporter(config, 1)
    counters = SharedCounters(counter_file("test", 1), names(config), create=True)
    counters.add("vote_grants_any", 3)
    counters.add("phase_steps_decode", 100)
    counters.set("prefill_longest_wait_seconds", 0.5)
    counters.add("verification_plans_static", 7)
    counters.add("verification_planner_seconds", 0.25)
    shown = scrape()
    assert 'vllm_deepinfer_vote_grants_total{engine="1",kind="any"} 3.0' in shown
    assert 'vllm_deepinfer_phase_steps_total{engine="1",phase="decode"} 100.0' in shown
    assert 'vllm_deepinfer_prefill_longest_wait_seconds{engine="1"} 0.5' in shown
    assert 'vllm_deepinfer_verification_plans_total{engine="1",kind="static"} 7.0' in shown
    assert 'vllm_deepinfer_verification_planner_seconds_total{engine="1"} 0.25' in shown


def test_nothing_shows_of_what_is_off():
    exporter.CounterExporter(configuration(), 0)
    SharedCounters(counter_file("test", 0), names(configuration()), create=True)
    shown = scrape()
    assert "_vote_" not in shown and "_verification_" not in shown and "draft_offered" in shown
