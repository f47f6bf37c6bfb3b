"""What the engine core counts is what a scrape of ``/metrics`` shows; other models show nothing.

If this fails, operators see no acceptance, or one process's file stays behind another.
"""

from __future__ import annotations

from types import SimpleNamespace

import prometheus_client
import pytest

from vllm_deepinfer.metrics import exporter, shared_counters
from vllm_deepinfer.metrics.shared_counters import SharedCounters, counter_file
from vllm_deepinfer.scheduler.drafting import counter_names


def configuration(num_drafts=2, scheduler="vllm_deepinfer.scheduler.mixin.DeepInferScheduler"):
    drafting = None if num_drafts == 0 else SimpleNamespace(num_speculative_tokens=num_drafts)
    return SimpleNamespace(
        speculative_config=drafting,
        scheduler_config=SimpleNamespace(scheduler_cls=scheduler),
        instance_id="test",
    )


@pytest.fixture(autouse=True)
def private(monkeypatch, tmp_path):
    """A registry and a folder of the test's own."""
    monkeypatch.setattr(prometheus_client, "REGISTRY", prometheus_client.CollectorRegistry())
    monkeypatch.setattr(shared_counters.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(exporter.atexit, "register", lambda *args, **kwargs: None)


def scrape() -> str:
    return prometheus_client.generate_latest(prometheus_client.REGISTRY).decode()


def test_counts_show_by_engine_and_position():
    exporter.DraftCounterExporter(configuration(), 3)
    assert "vllm_deepinfer" not in scrape()  # the engine core is still starting
    counters = SharedCounters(counter_file("test", 3), counter_names(2), create=True)
    counters.add("offered_0", 5)
    counters.add("accepted_1", 2)
    counters.add("confidence_0", 3.5)
    shown = scrape()
    assert 'vllm_deepinfer_draft_offered_total{engine="3",position="0"} 5.0' in shown
    assert 'vllm_deepinfer_draft_accepted_total{engine="3",position="1"} 2.0' in shown
    assert 'vllm_deepinfer_draft_confidence_total{engine="3",position="0"} 3.5' in shown
    counters.add("offered_0")
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
    exporter.DraftCounterExporter(config, 0)
    assert scrape() == ""


def test_counts_stay_readable_after_the_file_is_removed():
    exporter.DraftCounterExporter(configuration(), 0)
    counters = SharedCounters(counter_file("test", 0), counter_names(2), create=True)
    assert "vllm_deepinfer_draft_offered_total" in scrape()
    counters.remove()
    assert not counter_file("test", 0).exists()
    assert "vllm_deepinfer_draft_offered_total" in scrape()
