"""Shows the engine core's counters in ``/metrics`` of the API server."""

from __future__ import annotations

import atexit
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import prometheus_client
from prometheus_client.core import CounterMetricFamily
from vllm.v1.metrics.loggers import StatLoggerBase

from vllm_deepinfer.metrics.shared_counters import SharedCounters, counter_file
from vllm_deepinfer.scheduler.drafting import ACCEPTED, CONFIDENCE, OFFERED, counter_names

if TYPE_CHECKING:
    from vllm.config import VllmConfig

HELP = {
    OFFERED: "Drafts verified, by position in the block.",
    ACCEPTED: "Drafts that survived verification, by position in the block.",
    CONFIDENCE: "Sum of the drafter's confidence in offered drafts; over offered, its mean.",
}


class DraftCounterExporter(StatLoggerBase):
    """A stat logger that logs nothing: it hands the counters to Prometheus when asked.

    vLLM makes one per engine for every model; it stays idle unless this package's scheduler keeps
    counters.
    """

    def __init__(self, vllm_config: VllmConfig, engine_index: int = 0) -> None:
        self._num_drafts = 0
        scheduler_class = vllm_config.scheduler_config.scheduler_cls
        if vllm_config.speculative_config is None or not str(scheduler_class).startswith(
            "vllm_deepinfer."
        ):
            return
        self._num_drafts = vllm_config.speculative_config.num_speculative_tokens
        self._engine = str(engine_index)
        self._path = counter_file(vllm_config.instance_id, engine_index)
        self._counters: SharedCounters | None = None
        prometheus_client.REGISTRY.register(self)
        # The engine core removes its file too, unless it is killed.
        atexit.register(self._path.unlink, missing_ok=True)

    def collect(self) -> Iterator[CounterMetricFamily]:
        """Called by Prometheus' registry for each scrape."""
        if self._counters is None:
            if not self._path.exists():
                return  # the engine core is still starting
            self._counters = SharedCounters(
                self._path, counter_names(self._num_drafts), create=False
            )
        for kind, text in HELP.items():
            family = CounterMetricFamily(
                f"vllm_deepinfer_draft_{kind}", text, labels=["engine", "position"]
            )
            for position in range(self._num_drafts):
                value = self._counters[f"{kind}_{position}"]
                family.add_metric([self._engine, str(position)], value)
            yield family

    def describe(self) -> list[CounterMetricFamily]:
        """Nothing to describe before the first scrape."""
        return []

    def record(self, *args: Any, **kwargs: Any) -> None:
        """vLLM's own statistics are logged by vLLM."""

    def log_engine_initialized(self) -> None:
        """Nothing to say."""
